"""Q and DQ nodes that follow each other, or stand beside their like: one grid where there were several."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, LocalRule, Replacement
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dequantized, dq_operand, q_operand, quantized


class DropSelfRequantize(LocalRule):
    """Q(DQ(x, s, z), s, z) = x: requantizing to the same grid changes nothing."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, dequantized(op, "back"), "last")

    def check(self, back: ir.Node, last: ir.Node) -> str | None:
        source = dq_operand(back)
        return grid_relations.different(source, q_operand(last)) or grid_relations.unusable(source)

    def rewrite(self, op: Builder, back: ir.Node) -> ir.Value:
        return dq_operand(back).q


class SkipRequantize(LocalRule):
    """Q3(DQ2(Q2(DQ1(x)))) = Q3(DQ1(x)) where that holds for every integer that x can be."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return _chain(op, dequantized(op, "first"))

    def check(self, first: ir.Node, middle: ir.Node, back: ir.Node, last: ir.Node) -> str | None:
        doubt = _not_a_chain(middle, back, last) or _no_single_grid(dq_operand(first), "source")
        if doubt is not None:
            return doubt
        move = _largest_move(dq_operand(first), q_operand(middle), q_operand(last))
        return None if move == 0 else f"some integers would move by {move}"

    def rewrite(self, op: Builder, first: ir.Node, last: ir.Node) -> ir.Value:
        return op.like(last, first.outputs[0], *last.inputs[1:])


class MergeRequantize(LocalRule):
    """Q2(DQ1(Q1(x))) = Q2(x) within one step, where grid 1 covers grid 2 and its step is at most twice as large."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return _chain(op, x)

    def check(self, x: ir.Value, middle: ir.Node, back: ir.Node, last: ir.Node) -> str | None:
        doubt = _not_a_chain(middle, back, last)
        if doubt is not None:
            return doubt
        producer = x.producer()
        if (
            producer is not None
            and producer.op_type == "DequantizeLinear"
            and not _no_single_grid(dq_operand(producer), "x")
        ):
            move = _largest_move(dq_operand(producer), q_operand(middle), q_operand(last))
            return None if move <= 1 else f"some integers would move by {move}"
        return grid_relations.not_covered(q_operand(middle), q_operand(last))

    def rewrite(self, op: Builder, x: ir.Value, last: ir.Node) -> ir.Value:
        return op.like(last, x, *last.inputs[1:])


class _MergeEqual(LocalRule):
    """Two nodes of one type with the same inputs and attributes are one."""

    exactness = EXACT
    op_type: ClassVar[str]

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var | None = None) -> Roots:
        first, second = (op.node(self.op_type, x, s, z, _name=name) for name in ("first", "second"))
        return first, second

    def check(self, first: ir.Node, second: ir.Node) -> str | None:
        return _attributes_differ(first, second)

    def rewrite(self, op: Builder, x: ir.Value, s: ir.Value, z: ir.Value | None, first: ir.Node) -> Replacement:
        merged = op.like(first, x, s, z)
        return merged, merged


class MergeEqualQuantizers(_MergeEqual):
    """Q(x, s, z) and Q(x, s, z) are one node."""

    op_type = "QuantizeLinear"


class MergeEqualDequantizers(_MergeEqual):
    """DQ(x, s, z) and DQ(x, s, z) are one node."""

    op_type = "DequantizeLinear"


def _chain(op: Patterns, x: Var | Output) -> Output:
    """Q(DQ(Q(x))) whose intermediate integers nothing else uses."""
    middle = op.QuantizeLinear(x, Var("s"), Var("z", optional=True), _name="middle")
    back = op.DequantizeLinear(middle, Var("bs"), Var("bz", optional=True), _name="back")
    return quantized(op, back, "last")


def _not_a_chain(middle: ir.Node, back: ir.Node, last: ir.Node) -> str | None:
    """Refuse a chain whose two grids cannot be compared: they are computed, per channel, or not what they seem."""
    via, result = q_operand(middle), q_operand(last)
    doubt = grid_relations.different(via, dq_operand(back))
    if doubt is not None:
        return f"the pair in the middle does not share one grid: {doubt}"
    return _no_single_grid(via, "the intermediate grid") or _no_single_grid(result, "the output grid")


def _no_single_grid(operand: Operand, name: str) -> str | None:
    doubt = not_one_grid(**{name: operand}) or grid_relations.unusable(operand)
    if doubt is None and operand.dtype is not None and operand.dtype.bitwidth > 16:
        return f"{name} has {operand.dtype.bitwidth} bits"
    return doubt


def _largest_move(source: Operand, via: Operand, result: Operand) -> int:
    """By how many levels of `result` a detour over `via` moves an integer of `source` at most."""
    real = grid_relations.dequantize(grid_relations.every_level(source), source)
    there = grid_relations.quantize(grid_relations.dequantize(grid_relations.quantize(real, via), via), result)
    return int(np.abs(there.astype(np.int64) - grid_relations.quantize(real, result).astype(np.int64)).max())


def _attributes_differ(first: ir.Node, second: ir.Node) -> str | None:
    one, other = ({name: item.value for name, item in node.attributes.items()} for node in (first, second))
    return None if one == other else f"the attributes of {first.name!r} and {second.name!r} differ"
