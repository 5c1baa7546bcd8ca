"""Operators in a form that integer kernels have, with the same integers: clips, additions, and types (`signs.py`)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, LocalRule
from intact.model import query
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid, not_one_type
from intact.rules.quantized.operand import MICROSOFT, Operand, dequantized, described, dq_operand, q_operand, quantized


class ReluToIntegerClip(LocalRule):
    """Q(Relu(x), s, z) = max(Q(x, s, z), z): quantizing keeps the order of values."""

    exactness = EXACT
    creates = (("", "Clip"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return quantized(op, op.Relu(x), "y")

    def check(self, y: ir.Node) -> str | None:
        return _not_clipped(q_operand(y), 0.0, None)

    def rewrite(self, op: Builder, x: ir.Value, y: ir.Node) -> ir.Value:
        return _clip(op, x, y, 0.0, None)


class ClipToIntegerClip(LocalRule):
    """Q(Clip(x, a, b), s, z) = Clip(Q(x, s, z), Q(a), Q(b)): quantizing keeps the order of values."""

    exactness = EXACT
    creates = (("", "Clip"),)

    def pattern(self, op: Patterns, x: Var, low: Var | None = None, high: Var | None = None) -> Roots:
        return quantized(op, op.Clip(x, op.constant(low), op.constant(high)), "y")

    def check(self, x: ir.Value, y: ir.Node, low: ir.Value | None, high: ir.Value | None) -> str | None:
        if x.dtype is not None and not x.dtype.is_floating_point():
            return "it clips integers already"
        return _not_clipped(q_operand(y), query.scalar(low), query.scalar(high))

    def rewrite(self, op: Builder, x: ir.Value, y: ir.Node, low: ir.Value | None, high: ir.Value | None) -> ir.Value:
        return _clip(op, x, y, query.scalar(low), query.scalar(high))


def _not_clipped(grid: Operand, low: float | None, high: float | None) -> str | None:
    """Refuse a grid on which there is nothing to clip."""
    reason = not_one_type(output=grid) or not_one_grid(output=grid)
    if reason is not None:
        return reason
    return None if any(end is not None for end in _ends(grid, low, high)) else "the grid clips there itself"


def _ends(grid: Operand, low: float | None, high: float | None) -> tuple[int | None, int | None]:
    """The levels of the ends of a clip, None where the grid ends no later."""
    least, greatest = grid.limits
    bottom, top = (None if end is None else _level(grid, end) for end in (low, high))
    return None if bottom is None or bottom <= least else bottom, None if top is None or top >= greatest else top


def _level(grid: Operand, value: float) -> int:
    """The level of a value, saturated."""
    return int(grid_relations.quantize(np.asarray(value), grid))


def _clip(op: Builder, x: ir.Value, y: ir.Node, low: float | None, high: float | None) -> ir.Value:
    grid = q_operand(y)
    levels = described(op.QuantizeLinear(x, *y.inputs[1:], **y.attributes), grid.known_dtype, y.outputs[0].shape)
    ends = _ends(grid, low, high)
    cuts = (None if end is None else op.constant(np.array(end, grid.known_dtype.numpy()), "limit") for end in ends)
    return op.Clip(levels, *cuts)


class SubToAdd(LocalRule):
    """Q(a - DQ(b, s, z)) = Q(a + DQ(~b, s, ~z)): ~b - ~z = z - b, in either sign."""

    exactness = EXACT
    creates = (("", "BitwiseNot"), (MICROSOFT, "QLinearAdd"))

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, op.Sub(dequantized(op, "a"), dequantized(op, "b")), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node) -> str | None:
        operands = {"first": dq_operand(a), "second": dq_operand(b), "output": q_operand(y)}
        return not_one_type(**operands) or not_one_grid(**operands)

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node) -> ir.Value:
        second = dq_operand(b)
        constant = query.constant(second.q)
        turned = op.BitwiseNot(second.q) if constant is None else op.constant(np.invert(constant), "negative")
        described(turned, second.known_dtype, second.q.shape)
        zero = op.constant(np.invert(np.array(second.zero, second.known_dtype.numpy())), "zero_point")
        negative = op.DequantizeLinear(turned, second.scale, zero)
        return op.QuantizeLinear(op.Add(a.outputs[0], negative), *y.inputs[1:], **y.attributes)
