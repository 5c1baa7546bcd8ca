"""Activations with a scale for each channel, as NNCF puts them before depthwise layers; NPUs take one scale.

The layer in front writes such a tensor, and depthwise layers read each channel by itself: both can take over what the
channels differ by, in the scales of their weights, and no integer changes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.occurrence import producer
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, WITHIN_ONE_STEP, LocalRule, Rule
from intact.model import query
from intact.rules.quantized import affine, grid_relations
from intact.rules.quantized.conv_bias import rescaled, unknown_weight
from intact.rules.quantized.operand import Operand, described, dq_operand, q_operand, quantized

FLOAT = ir.DataType.FLOAT


class OneScaleForChannels(Rule):
    """DQ(Q(Relu(Conv(x, w, b)), s, z)) = s/S · DQ(Q(Relu(Conv(x, S/s·w, S/s·b)), S, z)) with one S for all channels."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns) -> Roots:
        conv, other = (op.Conv(Var(f"x{n}"), Var(f"w{n}"), Var(f"b{n}", optional=True)) for n in (1, 2))
        sums = op.any_of(conv, op.Add(conv, other))
        bounds = Var("least", optional=True), Var("most", optional=True)
        y = op.any_of(op.Relu(sums), op.Clip(sums, *bounds), sums)
        first = quantized(op, y, "first")
        return op.DequantizeLinear(first, Var("last.scale"), Var("last.zero_point", optional=True), _name="last")

    def check(self, first: ir.Node, last: ir.Node) -> str | None:
        grid, readers = q_operand(first), last.outputs[0].consumers()
        doubt = grid_relations.different(grid, dq_operand(last)) or _not_by_channel(grid)
        if doubt is not None:
            return doubt
        if last.outputs[0].is_graph_output() or not readers:
            return "an output of the model or nothing reads it, not a depthwise layer"
        other = next((node for node in readers if _not_depthwise(node, last.outputs[0])), None)
        if other is not None:
            return f"{other.name} reads it, too: {_not_depthwise(other, last.outputs[0])}"
        clip, _, convs = _sources(first)
        doubt = _cuts(clip, grid) if clip is not None and clip.op_type == "Clip" else None
        return doubt or next(filter(None, (_not_scalable(conv, grid.scales().size) for conv in convs)), None)

    def rewrite(self, op: Builder, first: ir.Node, last: ir.Node) -> ir.Value:
        grid, (clip, add, convs) = q_operand(first), _sources(first)
        scales, shape = grid.scales(), grid.q.shape
        step = scales.max()
        y, *others = (_scaled(op, conv, step / scales) for conv in convs)
        if add is not None:
            y = described(op.Add(y, *others), FLOAT, shape)
        if clip is not None:
            # What a Clip cuts off above its grid cuts off as well.
            y = described(op.Relu(y), FLOAT, shape)
        zero = np.asarray(grid.zeros()[0]).astype(grid.known_dtype.numpy())
        one = op.constant(step, "scale"), op.constant(zero, "zero_point")
        integers = described(op.QuantizeLinear(y, *one), grid.dtype, shape)
        floats = described(op.DequantizeLinear(integers, *one), FLOAT, shape)
        column = (scales / step).reshape(-1, *[1] * (len(_shape(convs[0].inputs[1]) or ()) - 2))
        return op.Mul(floats, op.constant(column, "factor"))


class FoldFactorIntoDepthwise(LocalRule):
    """Conv(c·x, DQ(w, s), b) = Conv(x, DQ(w, c·s), b) for a depthwise Conv and a c > 0 for each channel."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, c: Var, w: Var) -> Roots:
        factor = op.Mul(x, op.constant(c), _shared=True)
        return op.Conv(factor, w, Var("b", optional=True), _name="conv")

    def check(self, conv: ir.Node, c: ir.Value) -> str | None:
        doubt = _not_depthwise(conv, conv.inputs[0])
        factor = None if doubt is not None else _factor(conv, c)
        return doubt or (factor if isinstance(factor, str) else None)

    def rewrite(self, op: Builder, conv: ir.Node, x: ir.Value, c: ir.Value) -> ir.Value:
        factor, weight, shape = _factor(conv, c), conv.inputs[1], _shape(conv.inputs[1])
        assert weight is not None and shape is not None and not isinstance(factor, str), f"checked before: {factor}"
        return op.like(conv, x, _times(op, weight, np.repeat(factor, shape[0] // len(factor))), *conv.inputs[2:])


def _not_by_channel(grid: Operand) -> str | None:
    """Refuse a grid that has no constant positive scale for each channel with one zero point for all."""
    scales, zeros = query.constant(grid.scale), grid.zero_point
    if scales is None or (zeros is not None and not query.is_constant(zeros)):
        return "the grid is computed, not constant"
    if scales.size == 1 or grid.block_size or grid.axis != 1:
        return "it has no scale for each channel"
    if scales.dtype != np.float32 or not (np.isfinite(scales) & (scales > 0)).all():
        return "its scales are not all positive in float32"
    return "its zero points differ" if np.unique(grid.zeros()).size > 1 else None


def _not_depthwise(node: ir.Node, value: ir.Value | None) -> str | None:
    """Refuse a reader that does not multiply each channel of a value by weights on a grid of its own."""
    if node.op_type != "Conv" or node.inputs[0] is not value or any(item is value for item in node.inputs[1:]):
        return "it is no Conv of it"
    shape, weight = _shape(node.inputs[1]), _grid_behind(node.inputs[1])
    if shape is None or shape[1] != 1 or query.int_(node, "group", 1) < 2:
        return "it is not depthwise"
    return "its weight is on no grid" if weight is None else unknown_weight(weight, shape)


def _grid_behind(value: ir.Value | None) -> Operand | None:
    node = None if value is None else value.producer()
    return dq_operand(node) if node is not None and node.op_type == "DequantizeLinear" else None


def _shape(constant: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a constant; what other rules put on a grid says it of its integers alone."""
    grid = _grid_behind(constant)
    return query.static_shape(constant if grid is None else grid.q)


def _sources(first: ir.Node) -> tuple[ir.Node | None, ir.Node | None, list[ir.Node]]:
    """The Relu or Clip before a quantizer, the Add before that, if there are any, and the layers before both."""
    node = _before(first.inputs[0])
    clip = node if node.op_type in ("Relu", "Clip") else None
    node = node if clip is None else _before(clip.inputs[0])
    return (clip, None, [node]) if node.op_type == "Conv" else (clip, node, [_before(value) for value in node.inputs])


def _before(value: ir.Value | None) -> ir.Node:
    assert value is not None, "the pattern has a node there"
    return producer(value)


def _scaled(op: Builder, conv: ir.Node, factor: np.ndarray) -> ir.Value:
    """A layer whose results have a factor for each channel."""
    operands = [None if value is None else _times(op, value, factor) for value in conv.inputs[1:]]
    return described(op.like(conv, conv.inputs[0], *operands), FLOAT, conv.outputs[0].shape)


def _cuts(clip: ir.Node, grid: Operand) -> str | None:
    """Refuse a Clip that cuts off more than the grid does above, or does not begin at 0."""
    least, most = (query.scalar(query.input_(clip, index)) for index in (1, 2))
    if least != 0 or most is None:
        return "the Clip does not begin at 0, or a bound of it is computed"
    levels = np.rint(np.float32(most) / grid.scales()) + grid.zeros()
    return None if (levels >= grid.limits[1]).all() else "the Clip cuts off values that the grid has"


def _not_scalable(conv: ir.Node, channels: int) -> str | None:
    """Refuse a layer whose weight or bias cannot take a factor for each output channel."""
    for value in conv.inputs[1:]:
        grid, shape = _grid_behind(value), _shape(value)
        if value is None:
            continue
        if shape is None or not shape or shape[0] != channels:
            return f"{query.describe(value)} is not known to be of {channels} channels"
        if grid is None and not (query.is_constant(value) and value.dtype == FLOAT):
            return f"{query.describe(value)} is no constant, on a grid or in float32"
        if grid is not None and (doubt := unknown_weight(grid, shape)) is not None:
            return doubt
    return None


def _times(op: Builder, value: ir.Value, factor: np.ndarray) -> ir.Value:
    """A constant with a factor for each element of its first axis, in the scales of its grid if it has one."""
    grid = _grid_behind(value)
    if grid is not None:
        scales = np.broadcast_to(grid.scales(), factor.shape) * factor
        return described(rescaled(op, grid, scales.astype(np.float32)), value.dtype, value.shape)
    array = query.known_constant(value)
    return op.constant((array * factor.reshape(-1, *[1] * (array.ndim - 1))).astype(np.float32), "constant")


def _factor(conv: ir.Node, c: ir.Value) -> np.ndarray | str:
    """The factor for each channel that a depthwise layer reads; text says why it is none."""
    found = affine.per_channel(c, query.constant(c), query.int_(conv, "group", 1), len(_shape(conv.inputs[1]) or ()), 1)
    if isinstance(found, str):
        return found
    return found if (np.isfinite(found) & (found > 0)).all() else "a factor is not positive"
