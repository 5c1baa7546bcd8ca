"""Tensors in the sign of the fastest kernels: uint8 activations instead of int8 ones, with the same values.

q and q + 128 are the same number where the zero point moves along. In QDQ form a tensor changes its sign by itself;
what integer operators need is in `operator_signs.py`. A conversion is Q of DQ on the same grid in the other sign.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, LocalRule, Rule
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.movement import MovementRule, computes
from intact.rules.quantized.operand import INT8, UINT8, Operand, described, dq_operand, q_operand, quantized
from intact.rules.quantized.saturation import SaturationRule, weight_of

FAMILY = "integer_forms"

# The axis of the output channels in the weight of a float operator.
_LINEAR = {"Conv": 0, "MatMul": -1, "Gemm": 1}
_ELEMENTWISE = ("Add", "Mul", "Sub", "Concat", "Where")
# What does the same to integers wherever zero is: it moves them, or cuts them at limits that move along.
_ORDERED = (*MovementRule.ops, "Clip")


class JoinShiftedGrids(LocalRule):
    """Q(DQ(Q(x, t, y), s, z), s, z ± 128) = Q(x, t, y ± 128): a conversion to the other sign is part of Q."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var) -> Roots:
        first = op.QuantizeLinear(x, Var("t"), Var("y"), _shared=True, _name="first")
        back = op.DequantizeLinear(first, Var("s"), Var("z"), _shared=True, _name="back")
        return quantized(op, back, "last")

    def check(self, first: ir.Node, back: ir.Node, last: ir.Node) -> str | None:
        before, after = dq_operand(back), q_operand(last)
        doubt = not_one_grid(source=q_operand(first), first=before, second=after)
        return doubt or not_shifted(before, after)

    def rewrite(self, op: Builder, x: ir.Value, first: ir.Node) -> ir.Value:
        return op.QuantizeLinear(x, first.inputs[1], shifted_zero(op, q_operand(first)))


class UnsignActivation(SaturationRule):
    """DQ(Q(x, t, y), s, z) = DQ(Q(x, t, y + 128), s, z + 128) in uint8 instead of int8."""

    exactness = EXACT
    is_local = False

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var) -> Roots:
        source = op.QuantizeLinear(x, Var("t"), Var("y"), _shared=True, _name="q")
        return op.DequantizeLinear(source, s, z, _name="dq")

    def check(self, q: ir.Node, dq: ir.Node) -> str | None:
        source, grid = q_operand(q), dq_operand(dq)
        if source.dtype != INT8:
            return "the activation is not int8"
        users = query.consumers(source.q)
        if source.q.is_graph_output() or any(user.op_type != "DequantizeLinear" for user in users):
            return "its integers go to other nodes than DequantizeLinear"
        return not_one_grid(source=source, activation=grid) or _reader_saturates(self, dq)

    def rewrite(self, op: Builder, q: ir.Node, dq: ir.Node) -> ir.Value:
        integers, zero_point = _quantized(op, q, dq_operand(dq))
        return op.DequantizeLinear(integers, dq.inputs[1], zero_point)


def _quantized(op: Builder, q: ir.Node, grid: Operand) -> tuple[ir.Value, ir.Value]:
    """The integers that `q` writes, in uint8, and the zero point of the grid on which they are read."""
    source = q_operand(q)
    zero_point = shifted_zero(op, source)
    integers = described(op.QuantizeLinear(q.inputs[0], source.scale, zero_point), UINT8, source.q.shape)
    return integers, zero_point if grid.zero_point is source.zero_point else shifted_zero(op, grid)


def _converted(op: Builder, q: ir.Value, grid: Operand) -> tuple[ir.Value, ir.Value]:
    """The integers of a grid in uint8, converted, and their zero point."""
    zero_point = shifted_zero(op, grid)
    real = op.DequantizeLinear(q, grid.scale, grid.zero_point)
    integers = described(op.QuantizeLinear(real, grid.scale, zero_point), UINT8, q.shape)
    return integers, zero_point


def _reader_saturates(rule: SaturationRule, dq: ir.Node) -> str | None:
    """Refuse where a product that reads the activation may saturate once it is uint8."""
    for user in query.consumers(dq.outputs[0]) if rule.saturates else ():
        producer = user.inputs[1].producer() if user.op_type in _LINEAR and user.inputs[1] is not None else None
        if producer is None or producer is dq or producer.op_type != "DequantizeLinear":
            continue
        weight = dq_operand(producer)
        if query.is_constant(weight.q) and weight.dtype == INT8:
            axis = integer_layers.gemm_axis(user) if user.op_type == "Gemm" else _LINEAR[user.op_type]
            reason = rule.pairs_saturate(weight_of(weight), axis)
            if reason is not None:
                return reason
    return None


class UnsignMovedActivation(SaturationRule):
    """DQ(move(q), s, z) = DQ(move(q + 128), s, z + 128) in uint8 instead of int8, where q was quantized just before.

    A Clip of integers keeps their order, too: its limits move along.
    """

    exactness = EXACT
    is_local = False

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var) -> Roots:
        move = op.node(_ORDERED, x, op.each(Var("rest", optional=True)), _name="move")
        return op.DequantizeLinear(move, s, z, _name="dq")

    def check(self, x: ir.Value, move: ir.Node, dq: ir.Node) -> str | None:
        q, grid = _quantizer(x), dq_operand(dq)
        if grid.dtype != INT8:
            return "the activation is not int8"
        if len(move.outputs) > 1 or not _was_quantized(move.inputs[0]):
            return "what it moves was not quantized just before"
        if move.op_type == "Clip" and not all(end is None or query.is_scalar(end) for end in move.inputs[1:]):
            return "the limits of the Clip are computed, not constant"
        grids = {"activation": grid} if q is None else {"source": q_operand(q), "activation": grid}
        return computes(move) or not_one_grid(**grids) or _reader_saturates(self, dq)

    def rewrite(self, op: Builder, x: ir.Value, move: ir.Node, dq: ir.Node) -> ir.Value:
        q, grid = _quantizer(x), dq_operand(dq)
        turned, zero_point = _converted(op, x, grid) if q is None else _quantized(op, q, grid)
        rest = _shifted_limits(op, move) if move.op_type == "Clip" else move.inputs[1:]
        integers = described(op.like(move, turned, *rest), UINT8, move.outputs[0].shape)
        return op.DequantizeLinear(integers, grid.scale, zero_point)


def _quantizer(x: ir.Value) -> ir.Node | None:
    """The QuantizeLinear that writes the integers, if one does."""
    producer = x.producer()
    return producer if producer is not None and producer.op_type == "QuantizeLinear" else None


def _shifted_limits(op: Builder, clip: ir.Node) -> list[ir.Value | None]:
    ends = (query.constant(end) for end in clip.inputs[1:])
    return [None if end is None else op.constant(shifted(end), "limit") for end in ends]


def _was_quantized(x: ir.Value | None) -> bool:
    """True if integers come from a QuantizeLinear, perhaps through operators that keep their order."""
    producer = None if x is None else x.producer()
    while producer is not None and producer.op_type in _ORDERED and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    return producer is not None and producer.op_type == "QuantizeLinear"


class UnsignConstant(Rule):
    """DQ(c, s, z) = DQ(c + 128, s, z + 128) for a constant in int8 beside an activation in uint8."""

    exactness = EXACT

    def pattern(self, op: Patterns, c: Var, s: Var, z: Var) -> Roots:
        return op.DequantizeLinear(op.constant(c), s, z, _name="dq")

    def check(self, dq: ir.Node) -> str | None:
        grid = dq_operand(dq)
        if grid.dtype != INT8:
            return "the constant is not int8"
        users = query.consumers(dq.outputs[0])
        if not users or any(user.op_type not in _ELEMENTWISE or not _reads_unsigned(user) for user in users):
            return "it does not stand beside an activation in uint8"
        return not_one_grid(constant=grid)

    def rewrite(self, op: Builder, dq: ir.Node) -> ir.Value:
        grid = dq_operand(dq)
        integers = op.constant(shifted(query.constant(grid.q)), "unsigned")
        return op.DequantizeLinear(integers, grid.scale, shifted_zero(op, grid))


def _reads_unsigned(node: ir.Node) -> bool:
    producers = (value.producer() for value in node.inputs if value is not None)
    return any(
        item is not None and item.op_type == "DequantizeLinear" and dq_operand(item).dtype == UINT8
        for item in producers
    )


def not_shifted(before: Operand, after: Operand) -> str | None:
    """Refuse two grids that are not the same numbers in the other sign."""
    if {before.dtype, after.dtype} != {UINT8, INT8}:
        return "the types are not int8 and uint8"
    shift = 128 if after.dtype == UINT8 else -128
    same = before.step == after.step and before.zero + shift == after.zero
    return None if same else "the grids differ"


def shifted(integers: np.ndarray | None) -> np.ndarray:
    """uint8 as int8, 128 lower, or int8 as uint8, 128 higher."""
    assert integers is not None and integers.dtype in (np.uint8, np.int8), "only 8-bit constants change their sign"
    turned = np.asarray(integers.view(np.uint8) ^ np.uint8(0x80))
    return turned.view(np.int8 if integers.dtype == np.uint8 else np.uint8)


def shifted_zero(op: Builder, grid: Operand) -> ir.Value:
    """The zero point of the same grid in the other sign."""
    zeros = query.constant(grid.zero_point)
    if zeros is None:
        scale = query.constant(grid.scale)
        zeros = np.zeros(() if scale is None else scale.shape, grid.known_dtype.numpy())
    return op.constant(shifted(zeros), "zero_point")
