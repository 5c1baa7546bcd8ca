"""Grids with another zero point than the middle of their type, for compilers that widen those in the middle.

Such a compiler takes a zero point of 0 for a range of equal ends: of the numbers from -128 to 127 it makes those from
-127 to 127 on a scale that is 128/127 times as wide, and rounds every weight to it once more. Any other zero point it
takes as it is.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.numbers.integer_types import limits, middle
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import INT8, Operand, dq_operand, q_operand, type_name

# A bias has a type of its own, and one dimension; neither is widened.
_LEAST_RANK = 2


class MoveWeightOffMiddle(LocalRule):
    """DQ(w, s, 0) = DQ(w - 1, s, -1), but for the least integer, which becomes the one above it."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns) -> Roots:
        return op.DequantizeLinear(op.constant(Var("q")), Var("s"), Var("z", optional=True), _name="w")

    def check(self, w: ir.Node) -> str | None:
        weight = dq_operand(w)
        if (query.rank(weight.q) or 0) < _LEAST_RANK or weight.block_size:
            return "it is no weight with a scale for all of it or for a channel"
        return _not_in_middle(weight)

    def rewrite(self, op: Builder, w: ir.Node) -> ir.Value:
        weight = dq_operand(w)
        integers = np.maximum(query.known_constant(weight.q).astype(np.int64) - 1, limits("int8")[0])
        scales = query.known_constant(weight.scale)
        zeros = op.constant(np.full(scales.shape, -1, np.int8), "zero_point")
        return op.DequantizeLinear(op.constant(integers.astype(np.int8), "weight"), weight.scale, zeros, **w.attributes)


class MoveGridOffMiddle(LocalRule):
    """DQ(Q(x, s, 0), s, 0) = DQ(Q(x, s, -1), s, -1) within the range of both, and a step apart at its ends."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns, x: Var) -> Roots:
        back = op.QuantizeLinear(x, Var("s"), Var("z", optional=True), _shared=True, _name="there")
        return op.DequantizeLinear(back, Var("bs"), Var("bz", optional=True), _name="back")

    def check(self, there: ir.Node, back: ir.Node) -> str | None:
        grid = q_operand(there)
        return grid_relations.different(grid, dq_operand(back)) or not_one_grid(grid=grid) or _not_in_middle(grid)

    def rewrite(self, op: Builder, x: ir.Value, there: ir.Node) -> ir.Value:
        grid = q_operand(there)
        zero = op.constant(np.array(-1, np.int8), "zero_point")
        return op.DequantizeLinear(op.QuantizeLinear(x, grid.scale, zero), grid.scale, zero)


def _not_in_middle(operand: Operand) -> str | None:
    if operand.dtype != INT8:
        return f"it is {type_name(operand.dtype)}, not int8"
    if query.constant(operand.scale) is None or (operand.zero_point is not None and not _is_known(operand)):
        return "its grid is computed"
    return None if (operand.zeros() == middle("int8")).all() else "its zero point is not in the middle"


def _is_known(operand: Operand) -> bool:
    return query.constant(operand.zero_point) is not None
