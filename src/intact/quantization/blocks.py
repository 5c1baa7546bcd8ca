"""Weights with a scale for each block of values: low-power block quantization (LPBQ).

The scale of a block is an integer from 1 to 16 times the scale of its channel. Written in ONNX, the integers stand in
a DequantizeLinear of their own whose output is the scale of the weight's DequantizeLinear.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers import encoding as arithmetic
from intact.numbers.encoding import LEAST_SCALE, Encoding, to_levels
from intact.numbers.integer_types import middle
from intact.quantization.calibration.resolve import Resolved
from intact.records import dataclass
from intact.results import QuantPlan, WeightPlan
from intact.settings.config import QuantConfig
from intact.settings.preset_table import IN_BLOCKS, check_blocks
from intact.targets import predicates
from intact.targets.spec import Target

# The greatest integer that the scale of a block is made of.
STEPS = 16


@dataclass(frozen=True, slots=True)
class Blocked:
    """A plan without the weights that are quantized in blocks, those weights, and what the user should know."""

    rest: QuantPlan
    weights: tuple[WeightPlan, ...]
    size: int = 0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def whole(self) -> QuantPlan:
        """The plan with all weights."""
        return replace(self.rest, weights=(*self.rest.weights, *self.weights))


def split(model: ir.Model, plan: QuantPlan, target: Target, config: QuantConfig) -> Blocked:
    """Take out of `plan` the weights that `target` takes in blocks of `config.block_size`."""
    if not config.block_size:
        return Blocked(plan, ())
    check_blocks(config)
    nodes = {node.name: node for node in query.all_nodes(model)}
    reasons = {
        w: _refusal(nodes[w.node], w, plan, target, config.block_size) for w in plan.weights if w.dtype in IN_BLOCKS
    }
    taken = tuple(weight for weight, reason in reasons.items() if reason is None)
    left = [f"{weight.node} ({nodes[weight.node].op_type}): {reason}" for weight, reason in reasons.items() if reason]
    rest = replace(plan, weights=tuple(weight for weight in plan.weights if weight not in taken))
    said = f"blocks of {config.block_size}: {len(taken)} of {len(reasons)} {config.weight_type} weights"
    others = f"{said}; the others have a scale per channel: {'; '.join(left)}"
    return Blocked(rest, taken, config.block_size, (others if left and taken else said,), () if taken else (others,))


def _refusal(node: ir.Node, weight: WeightPlan, plan: QuantPlan, target: Target, size: int) -> str | None:
    """Return the reason against quantizing a weight in blocks, or None if there is none."""
    spec = target.op(node.domain, node.op_type)
    assert spec is not None, "planned nodes are in the table"
    activation = plan.nodes[weight.node]
    rows = [row for row in target.signatures(spec) if (first := row.input(0)) and activation in first.types]
    slots = [(row, row.input(weight.index)) for row in rows]
    blocked = [
        row for row, slot in slots if slot is not None and slot.granularity == "block" and weight.dtype in slot.types
    ]
    if not blocked:
        return f"{target.name} takes no blocks there"
    if not any(predicates.meets(node, row.require) for row in blocked):
        return predicates.requirement(blocked[0].require[0])
    value = node.inputs[weight.index]
    shape = value.shape.numpy() if value is not None and value.shape is not None else ()
    if len(shape) != 2 or weight.axis is None:
        return "its weight is not a matrix with a scale per channel"
    inputs = shape[1 - weight.axis]
    return None if inputs % size == 0 else f"{inputs} inputs are not a multiple of {size}"


def resolve(model: ir.Model, blocked: Blocked, resolved: Resolved) -> Resolved:
    """`resolved` with the encodings and integers of the weights in blocks, each rounded to nearest."""
    constants, tensors = dict(resolved.constants), query.initializers(model) if blocked.weights else {}
    for weight in blocked.weights:
        tensor = tensors[weight.tensor].const_value
        assert tensor is not None and weight.axis is not None, "weights in blocks are constants with channels"
        constants[weight.node, weight.index] = encode(
            tensor.numpy().astype(np.float64), weight.axis, blocked.size, weight.dtype
        )
    return replace(resolved, constants=constants)


def encode(matrix: np.ndarray, channel: int, size: int, dtype: str = "int4") -> tuple[Encoding, np.ndarray]:
    """The encoding of a matrix in blocks of `size` across its `channel` axis, and its integers.

    Each block has that multiple of the channel's scale which loses least; the block with the largest value has 16.
    """
    rows = matrix if channel == 0 else matrix.T
    values = rows.reshape(len(rows), -1, size)
    reach = np.abs(values).max(axis=2)
    whole = arithmetic.encode(-reach.max(axis=1), reach.max(axis=1), dtype, symmetric=True, axis=0)
    channel_scale = np.maximum(whole.scale[:, None] / np.float32(STEPS), np.float32(LEAST_SCALE))
    zero = middle(dtype)
    scale = channel_scale * _multiples(values, reach, channel_scale, dtype)
    integers = to_levels(values, scale[..., None], zero, dtype).astype(np.int64).reshape(rows.shape)
    scale, integers = (scale, integers) if channel == 0 else (scale.T, integers.T)
    return Encoding(dtype, scale, np.full(scale.shape, zero, np.int64), 1 - channel, size), integers


def _multiples(values: np.ndarray, reach: np.ndarray, channel_scale: np.ndarray, dtype: str) -> np.ndarray:
    """For each block the integer from 1 to 16 whose scale gives the least squared error."""
    zero, errors = middle(dtype), []
    for multiple in range(1, STEPS + 1):
        scale = (channel_scale * np.float32(multiple))[..., None]
        rounded = (to_levels(values, scale, zero, dtype) - zero) * scale
        errors.append(((rounded - values) ** 2).sum(axis=2))
    best: np.ndarray = (np.argmin(errors, axis=0) + 1).astype(np.float32)
    # One block of each channel keeps the greatest multiple: the channel's scale can be read back from the others.
    np.put_along_axis(best, reach.argmax(axis=1)[:, None], STEPS, axis=1)
    return best


def factors(encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """The scale of each channel, and the integers that it is multiplied by for each block."""
    assert encoding.axis is not None and encoding.block_size, "an encoding in blocks"
    channel = encoding.scale.max(axis=encoding.axis, keepdims=True) / np.float32(STEPS)
    return channel.reshape(-1), np.rint(encoding.scale / channel).astype(np.uint8)
