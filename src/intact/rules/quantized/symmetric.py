"""Weights between DQ and Q on a grid with zero point 0 for every channel, for devices that take no other.

The form is that of NPU providers: each operator with Q/DQ nodes of its own.
"""

from __future__ import annotations

import json
from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.occurrence import producer
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, NEAR
from intact.model import query
from intact.numbers.decibels import decibels
from intact.numbers.integer_types import INT32_MAX, middle
from intact.records import dataclass
from intact.rules.quantized import integer_layers
from intact.rules.quantized.copies import copy_indices, fits, split
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dequantized, described, dq_operand
from intact.rules.quantized.target_rule import TargetRule
from intact.targets.spec import Forms

FAMILY = "zero_points"

WEIGHT_SQNR = "intact.weight_sqnr_db"
"""Metadata key of an operator: the SQNR in dB of each channel of its weight, as JSON, after requantization."""

LEAST_SQNR = 40.0
"""The SQNR in dB that requantizing the weight of a layer must keep."""

_SIGNED = {8: ir.DataType.INT8, 4: ir.DataType.INT4, 16: ir.DataType.INT16}


class SymmetryRule(TargetRule):
    """A rule for weights whose zero points the target does not take."""

    def __init__(self, zero_points: str = "middle") -> None:
        self.zero_points = zero_points

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.weight_zero_points)

    def taken(self, weight: Operand) -> str | None:
        """Refuse a weight whose zero points may stay or have to: the target takes them, or they are computed."""
        if weight.zero_point is None or not query.is_constant(weight.zero_point):
            return "the weight has no zero point" if weight.zero_point is None else "its zero points are computed"
        if not query.is_constant(weight.q) or not query.is_constant(weight.scale):
            return "the weight is computed, not constant"
        if weight.block_size or weight.dtype is None or weight.dtype.bitwidth not in _SIGNED:
            return "the weight is quantized in blocks, or not of 4, 8 or 16 bits"
        zeros = weight.zeros()
        if zeros.size == 1 or self.zero_points == "any":
            return "the target takes this zero point"
        return "the weight is symmetric" if (zeros == middle(weight.dtype.name.lower())).all() else None


class AbsorbDequantized(SymmetryRule):
    """DQ(w, s, z_c) = DQ(w - z_c, s, 0), where every w - z_c is a signed number of as many bits."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return op.DequantizeLinear(op.constant(Var("q")), Var("s"), Var("z"), _name="w")

    def check(self, w: ir.Node) -> str | None:
        if any(reader.op_type == "DequantizeLinear" for reader in w.outputs[0].consumers()):
            return "it makes the scales of blocks, which stay unsigned"
        weight = dq_operand(w)
        reason = self.taken(weight)
        if reason is not None:
            return reason
        found = weight.centred()
        return None if _fits(weight) else f"w - zero_point reaches from {found.min()} to {found.max()}: a bit too many"

    def rewrite(self, op: Builder, w: ir.Node) -> ir.Value:
        weight = dq_operand(w)
        return op.DequantizeLinear(*_symmetric(op, weight, weight.centred(), weight.scale), **w.attributes)


def _fits(weight: Operand) -> bool:
    return fits(weight.centred(), weight.known_dtype.bitwidth)


def _symmetric(
    op: Builder, weight: Operand, integers: np.ndarray, scale: ir.Value | None
) -> tuple[ir.Value, ir.Value | None, ir.Value]:
    """Integers, scale and zero points 0 in the signed type of as many bits."""
    dtype = _SIGNED[weight.known_dtype.bitwidth].numpy()
    zeros = np.zeros(weight.zeros().size, dtype)
    return op.constant(integers.astype(dtype), "weight"), scale, op.constant(zeros, "weight_zero_point")


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A Conv, MatMul or Gemm between DQ and Q: its operands, the axis of its channels, and the axes it sums along."""

    node: ir.Node
    x: Operand
    w: Operand
    channel_axis: int
    x_axis: int
    w_axis: int

    @property
    def bias(self) -> ir.Value | None:
        return query.input_(self.node, 2)


def _layer(node: ir.Node, x: ir.Node, w: ir.Node) -> _Layer:
    if node.op_type == "Conv":
        return _Layer(node, dq_operand(x), dq_operand(w), 0, 1, 1)
    if node.op_type == "MatMul":
        return _Layer(node, dq_operand(x), dq_operand(w), -1, -1, -2)
    axis = integer_layers.gemm_axis(node)
    return _Layer(node, dq_operand(x), dq_operand(w), axis, 0 if query.int_(node, "transA", 0) else 1, 1 - axis)


class _LayerRule(SymmetryRule):
    """A rule for an operator that multiplies activations on one grid by a constant weight."""

    def pattern(self, op: Patterns, bias: Var | None = None) -> Roots:
        operands = dequantized(op, "x"), dequantized(op, "w")
        biased = op.node(("Conv", "Gemm"), *operands, bias, _name="node")
        return op.any_of(biased, op.MatMul(*operands, _name="node"))

    def check(self, node: ir.Node, x: ir.Node, w: ir.Node) -> str | None:
        layer = _layer(node, x, w)
        reason = self.taken(layer.w) or not_one_grid(input=layer.x)
        if reason is not None:
            return reason
        rank = query.rank(layer.w.q) or 0
        if layer.w.axis % rank != layer.channel_axis % rank:
            return f"scales are along axis {layer.w.axis}, not along the channels"
        if _fits(layer.w):
            return "absorb_dequantized takes it"
        return self.doubt(layer)

    def doubt(self, layer: _Layer) -> str | None:
        """Refuse a layer with constant weight on which the rule may not fire."""
        return None


class RequantizeWeight(_LayerRule):
    """Conv(x, DQ(w, s, z_c)) ≈ Conv(x, DQ(v, t, 0)) with t·v nearest to s·(w - z_c), where that keeps 40 dB."""

    exactness = NEAR

    def doubt(self, layer: _Layer) -> str | None:
        kept = _sqnr(layer.w, layer.channel_axis)
        noise = -decibels(_total_noise(layer.w, layer.channel_axis))
        if noise < LEAST_SQNR:
            return f"a symmetric weight keeps {noise:.1f} dB (least channel {kept.min():.1f}), not {LEAST_SQNR:g}"
        steps, channels = _bias_steps(layer), integer_layers.channel_count(layer.w, layer.channel_axis)
        if layer.bias is None or channels is None:
            return None
        levels = integer_layers.bias_levels(layer.bias, steps, channels)
        return levels if isinstance(levels, str) else None

    def rewrite(self, op: Builder, node: ir.Node, x: ir.Node, w: ir.Node) -> ir.Value:
        layer = _layer(node, x, w)
        integers, scales = requantized(layer.w, layer.channel_axis)
        weight = op.DequantizeLinear(
            *_symmetric(op, layer.w, integers, op.constant(scales, "weight_scale")), **w.attributes
        )
        added = _bias(op, layer, _bias_steps(layer))
        result = op.like(node, x.outputs[0], weight, added)
        kept = [round(float(value), 2) for value in _sqnr(layer.w, layer.channel_axis)]
        producer(result).metadata_props[WEIGHT_SQNR] = json.dumps(kept)
        return result


class DuplicateDequantizedInput(_LayerRule):
    """Conv(x, DQ(w, s, z_c)) = Conv(Concat(x, x), DQ(Concat(a, b), s, 0)) with a + b = w - z_c, up to rounding."""

    exactness = BOUNDED
    exact_in_integers = True

    def rewrite(self, op: Builder, node: ir.Node, x: ir.Node, w: ir.Node) -> ir.Value:
        layer = _layer(node, x, w)
        parts = split(layer.w.centred(), layer.w.known_dtype.bitwidth)
        copies = op.QuantizeLinear(_copies(op, layer, x, len(parts)), *layer.x.grid(op))
        copies = described(copies, layer.x.dtype, None)
        data = op.DequantizeLinear(copies, *layer.x.grid(op))
        integers = _symmetric(op, layer.w, np.concatenate(parts, layer.w_axis), layer.w.scale)
        weight = op.DequantizeLinear(*integers, **w.attributes)
        return op.like(node, data, weight, layer.bias)


def _copies(op: Builder, layer: _Layer, x: ir.Node, count: int) -> ir.Value:
    group, shape = query.int_(layer.node, "group", 1), query.known_shape(layer.w.q)
    if group == 1:
        # Each operand of the Concat has a DQ of its own: a provider takes an operator together with its own.
        again = (op.DequantizeLinear(*x.inputs, **x.attributes) for _ in range(count))
        return op.Concat(*again, axis=layer.x_axis)
    given = op.DequantizeLinear(*x.inputs, **x.attributes)
    return op.Gather(given, op.constant(copy_indices(shape[1], group, count), "copies"), axis=1)


def requantized(weight: Operand, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric integers and their scales for a weight; the roundings of each channel add up to about nothing.

    An input that is about the same everywhere then finds about the same sum.
    """
    greatest = 2 ** (weight.known_dtype.bitwidth - 1) - 1
    rows = _rows(weight.centred(), axis) * _scales(weight, axis)
    scales = (np.abs(rows).max(axis=1, initial=0) / greatest).astype(np.float32)
    scales[scales == 0] = weight.scales().max()
    exact = rows / scales.astype(np.float64)[:, None]
    integers = np.clip(_rounded_with_sum(exact), -greatest, greatest).astype(np.int64)
    moved = np.moveaxis(weight.centred(), axis, 0).shape
    return np.moveaxis(integers.reshape(moved), 0, axis), scales


def _rounded_with_sum(exact: np.ndarray) -> np.ndarray:
    """Rows in whole numbers: as many of the largest fractions go up as keep the sum of the row, to a half at most."""
    low = np.floor(exact)
    up = np.rint((exact - low).sum(axis=1)).astype(np.int64)
    order = np.argsort(-(exact - low), axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    return np.asarray(low + (ranks < up[:, None]))


def _rows(array: np.ndarray, axis: int) -> np.ndarray:
    moved = np.moveaxis(array, axis, 0)
    return np.asarray(moved.reshape(len(moved), -1).astype(np.float64))


def _scales(weight: Operand, axis: int) -> np.ndarray:
    channels = query.known_shape(weight.q)[axis]
    return np.asarray(np.broadcast_to(weight.scales().astype(np.float64), (channels,))[:, None])


def _noise(weight: Operand, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The power of each channel of a weight, and of what requantizing it changes."""
    integers, scales = requantized(weight, axis)
    given = _rows(weight.centred(), axis) * _scales(weight, axis)
    changed = _rows(integers, axis) * scales.astype(np.float64)[:, None]
    return (given**2).sum(axis=1), ((given - changed) ** 2).sum(axis=1)


def _sqnr(weight: Operand, axis: int) -> np.ndarray:
    """The SQNR in dB between each channel of a weight and its symmetric form; 200 where they are the same."""
    signal, noise = _noise(weight, axis)
    least = 1e-20 * signal.max()
    return np.asarray(decibels(np.maximum(signal, least) / np.maximum(noise, least)))


def _total_noise(weight: Operand, axis: int) -> float:
    """The mean over channels of noise over signal: channels count alike, however large their weights are."""
    signal, noise = _noise(weight, axis)
    live = signal > 0
    return float(np.mean(noise[live] / signal[live])) if live.any() and noise.any() else 1e-20


def _bias_steps(layer: _Layer) -> np.ndarray:
    """The step of the accumulator after the weight was requantized."""
    return np.asarray(layer.x.scales()[0] * requantized(layer.w, layer.channel_axis)[1])


def _bias(op: Builder, layer: _Layer, steps: np.ndarray) -> ir.Value | None:
    """The bias on the grid of the new accumulator; one in float stays."""
    producer = None if layer.bias is None else layer.bias.producer()
    if layer.bias is None or producer is None or producer.op_type != "DequantizeLinear":
        return layer.bias
    levels = integer_layers.known_levels(layer.bias, steps, layer.w, layer.channel_axis)
    integers = np.clip(np.rint(levels), -INT32_MAX, INT32_MAX).astype(np.int32)
    zeros = op.constant(np.zeros(len(integers), np.int32), "bias_zero_point")
    return op.DequantizeLinear(op.constant(integers, "bias"), op.constant(steps, "bias_scale"), zeros, axis=0)
