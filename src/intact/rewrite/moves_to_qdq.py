"""Pad and Split of integers, and moves of constant ones, with grids around them: the form that NPU providers take."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from intact.graph import query
from intact.graph.builder import Builder
from intact.graph.pattern import Patterns, Var
from intact.graph.rewriter import EXACT, LocalRule, Rule
from intact.rewrite import grid
from intact.rewrite.movement import MovementRule, computes
from intact.rewrite.operand import Operand, not_one_grid, read, written


class _Around(LocalRule):
    """An operator on integers that were quantized just before gets their grid around it."""

    exactness = EXACT
    op_type: ClassVar[str]
    outputs: ClassVar[int] = 1

    def pattern(self, op: Patterns) -> Any:
        source = op.QuantizeLinear(Var("x"), Var("s"), Var("z", optional=True), _shared=True, _name="source")
        rest = op.each(Var("rest", optional=True))
        return op.node(self.op_type, source, rest, _name="node", _outputs=self.outputs)

    def check(self, source: ir.Node, node: ir.Node) -> str | None:
        return not_one_grid(input=written(source)) or grid.unusable(written(source))

    def _real(self, op: Builder, source: ir.Node) -> Any:
        real = op.DequantizeLinear(source.outputs[0], *source.inputs[1:3])
        real.dtype, real.shape = ir.DataType.FLOAT, source.outputs[0].shape
        return real

    def _levels(self, op: Builder, source: ir.Node, real: Any, before: ir.Value) -> Any:
        real.dtype, real.shape = ir.DataType.FLOAT, before.shape
        return op.QuantizeLinear(real, *source.inputs[1:], **source.attributes)


class PadToQdq(_Around):
    """Pad(Q(x, s, z), c) = Q(Pad(DQ(Q(x, s, z), s, z), DQ(c, s, z)), s, z)."""

    op_type = "Pad"

    def check(self, source: ir.Node, node: ir.Node) -> str | None:
        if query.input_(node, 2) is not None and query.scalar(node.inputs[2]) is None:
            return "the level that it pads with is computed, not constant"
        return super().check(source, node)

    def rewrite(self, op: Builder, source: ir.Node, node: ir.Node) -> Any:
        attributes: dict[str, Any] = dict(node.attributes)
        fills = query.string(node, "mode", "constant") == "constant"
        value = op.constant(_filled(node, written(source)), "padding") if fills else None
        padded = op.Pad(self._real(op, source), node.inputs[1], value, query.input_(node, 3), **attributes)
        return self._levels(op, source, padded, node.outputs[0])


def _filled(node: ir.Node, levels: Operand) -> np.ndarray:
    """The float that a Pad of integers pads with; it is that of level 0 where it names none."""
    level = query.scalar(query.input_(node, 2))
    return grid.dequantize(np.asarray(level or 0), levels).astype(np.float32)


class _SplitToQdq(_Around):
    """What rules for a Split into as many parts as `outputs` share."""

    op_type = "Split"

    def rewrite(self, op: Builder, source: ir.Node, node: ir.Node) -> Any:
        attributes: dict[str, Any] = dict(node.attributes)
        parts = op.Split(self._real(op, source), *node.inputs[1:], _outputs=self.outputs, **attributes)
        return [self._levels(op, source, part, old) for part, old in zip(parts, node.outputs, strict=True)]


class SplitInTwoToQdq(_SplitToQdq):
    """Split(Q(x, s, z)) = Q(x₁, s, z), Q(x₂, s, z) with x₁, x₂ = Split(DQ(Q(x, s, z), s, z))."""

    outputs = 2


class SplitInThreeToQdq(_SplitToQdq):
    """Split(Q(x, s, z)) = Q(x₁, s, z), … with x₁, x₂, x₃ = Split(DQ(Q(x, s, z), s, z))."""

    outputs = 3


class SplitInFourToQdq(_SplitToQdq):
    """Split(Q(x, s, z)) = Q(x₁, s, z), … with x₁, x₂, x₃, x₄ = Split(DQ(Q(x, s, z), s, z))."""

    outputs = 4


class MoveConstantToQdq(LocalRule):
    """DQ(move(c), s, z) = DQ(Q(move(DQ(c, s, z)), s, z), s, z) for constant integers c, such as a table of words."""

    exactness = EXACT

    def pattern(self, op: Patterns, c: Var) -> Any:
        move = op.node(MovementRule.ops, op.constant(c), op.each(Var("rest", optional=True)), _name="move")
        return op.DequantizeLinear(move, Var("s"), Var("z", optional=True), _name="back")

    def check(self, move: ir.Node, back: ir.Node) -> str | None:
        return computes(move) or not_one_grid(constant=read(back)) or grid.unusable(read(back))

    def rewrite(self, op: Builder, c: ir.Value, move: ir.Node, back: ir.Node) -> Any:
        attributes: dict[str, Any] = dict(move.attributes)
        table = op.DequantizeLinear(c, *back.inputs[1:])
        moved = op.node(move.op_type, table, *move.inputs[1:], **attributes)
        moved.dtype, moved.shape = ir.DataType.FLOAT, move.outputs[0].shape
        levels = op.QuantizeLinear(moved, *read(back).grid(op))
        levels.dtype, levels.shape = read(back).dtype, move.outputs[0].shape
        return op.DequantizeLinear(levels, *back.inputs[1:], **back.attributes)


RULES: tuple[Rule, ...] = (
    PadToQdq(),
    SplitInTwoToQdq(),
    SplitInThreeToQdq(),
    SplitInFourToQdq(),
    MoveConstantToQdq(),
)
