"""Operators that move, cut off or interpolate integers, with grids around them: the form that NPU providers take."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, LocalRule, Replacement
from intact.model import query
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.movement import MovementRule, computes
from intact.rules.quantized.operand import Operand, described, dq_operand, q_operand, quantized
from intact.rules.quantized.to_qdq import dequantize

FAMILY = "to_qdq"


class _Around(LocalRule):
    """An operator on integers that were quantized just before gets their grid around it."""

    exactness = EXACT
    ops: ClassVar[tuple[str, ...]]
    has_parts: ClassVar[bool] = False
    """True if every output of the operator, however many, is a part of its first input."""

    def pattern(self, op: Patterns) -> Roots:
        source = op.QuantizeLinear(Var("x"), Var("s"), Var("z", optional=True), _shared=True, _name="source")
        rest = op.each(Var("rest", optional=True))
        node = op.node(self.ops, source, rest, _name="node")
        return op.every_output(node) if self.has_parts else node

    def doubt(self, node: ir.Node) -> str | None:
        """Refuse an operator that would not do the same to floats."""
        return None

    def check(self, source: ir.Node, node: ir.Node) -> str | None:
        if len(node.outputs) > 1 and not self.has_parts:
            return f"{node.op_type} has {len(node.outputs)} outputs"
        return self.doubt(node) or not_one_grid(input=q_operand(source)) or grid_relations.unusable(q_operand(source))

    def rewrite(self, op: Builder, source: ir.Node, node: ir.Node) -> Replacement:
        inputs = dequantize(op, q_operand(source)), *node.inputs[1:]
        parts = op.outputs_like(node, *inputs)
        return [_levels(op, source, part, before) for part, before in zip(parts, node.outputs, strict=True)]


def _levels(op: Builder, source: ir.Node, real: ir.Value, before: ir.Value) -> ir.Value:
    """`real` on the grid of `source`, in place of `before`."""
    return op.like(source, described(real, ir.DataType.FLOAT, before.shape), *source.inputs[1:])


class MoveToQdq(_Around):
    """move(Q(x, s, z)) = Q(move(DQ(Q(x, s, z), s, z)), s, z): what moves integers gets a grid around it."""

    ops = MovementRule.ops

    def doubt(self, node: ir.Node) -> str | None:
        return computes(node)


class InterpolateToQdq(_Around):
    """Resize(Q(x, s, z)) = Q(Resize(DQ(Q(x, s, z), s, z)), s, z): integers are interpolated and cut, floats rounded."""

    exactness = WITHIN_ONE_STEP
    ops = ("Resize",)

    def doubt(self, node: ir.Node) -> str | None:
        if query.string(node, "mode", "nearest") != "linear":
            return "only what lies between two integers is as near to them in float"
        fills = query.string(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        return "it fills in a value that is on no grid" if fills else None


class ConcatIntegersToQdq(LocalRule):
    """Concat(Q(x₁, s, z), Q(x₂, s, z), …) = Q(Concat(DQ(Q(x₁, s, z)), …), s, z)."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        part = op.QuantizeLinear(Var("x"), Var("s"), Var("z", optional=True), _shared=True, _name="parts")
        return op.Concat(op.each(part), _name="concat")

    def check(self, parts: tuple[ir.Node, ...]) -> str | None:
        first = q_operand(parts[0])
        differing = (grid_relations.different(first, q_operand(part)) for part in parts[1:])
        doubt = next((reason for reason in differing if reason is not None), None)
        return doubt or not_one_grid(input=first) or grid_relations.unusable(first)

    def rewrite(self, op: Builder, parts: tuple[ir.Node, ...], concat: ir.Node) -> ir.Value:
        real = op.Concat(*(dequantize(op, q_operand(part)) for part in parts), **concat.attributes)
        return _levels(op, parts[0], real, concat.outputs[0])


class ClipToQdq(LocalRule):
    """Clip(Q(x, s, z), a, b) = Q(Clip(x, (a - z) · s, (b - z) · s), s, z): quantizing keeps the order of values."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, low: Var | None = None, high: Var | None = None) -> Roots:
        return op.Clip(quantized(op, x, "source"), op.constant(low), op.constant(high))

    def check(self, source: ir.Node) -> str | None:
        return not_one_grid(input=q_operand(source)) or grid_relations.unusable(q_operand(source))

    def rewrite(
        self, op: Builder, x: ir.Value, source: ir.Node, low: ir.Value | None, high: ir.Value | None
    ) -> ir.Value:
        levels = q_operand(source)
        ends = (None if end is None else op.constant(_real(end, levels), "limit") for end in (low, high))
        return _levels(op, source, op.Clip(x, *ends), x)


def _real(level: ir.Value, levels: Operand) -> np.ndarray:
    """The float that a constant level stands for."""
    found = query.known_constant(level)
    return grid_relations.dequantize(found, levels).astype(np.float32)


class PadToQdq(_Around):
    """Pad(Q(x, s, z), c) = Q(Pad(DQ(Q(x, s, z), s, z), DQ(c, s, z)), s, z)."""

    ops = ("Pad",)

    def doubt(self, node: ir.Node) -> str | None:
        is_known = query.input_(node, 2) is None or query.scalar(node.inputs[2]) is not None
        return None if is_known else "the level that it pads with is computed, not constant"

    def rewrite(self, op: Builder, source: ir.Node, node: ir.Node) -> ir.Value:
        fills = query.string(node, "mode", "constant") == "constant"
        value = op.constant(_filled(node, q_operand(source)), "padding") if fills else None
        data = dequantize(op, q_operand(source))
        padded = op.Pad(data, node.inputs[1], value, query.input_(node, 3), **node.attributes)
        return _levels(op, source, padded, node.outputs[0])


def _filled(node: ir.Node, levels: Operand) -> np.ndarray:
    """The float that a Pad of integers pads with; it is that of level 0 where it names none."""
    level = query.scalar(query.input_(node, 2))
    return grid_relations.dequantize(np.asarray(level or 0), levels).astype(np.float32)


class SplitToQdq(_Around):
    """Split(Q(x, s, z)) = Q(x₁, s, z), Q(x₂, s, z), … with x₁, x₂, … = Split(DQ(Q(x, s, z), s, z))."""

    ops = ("Split",)
    has_parts = True


class MoveConstantToQdq(LocalRule):
    """DQ(move(c), s, z) = DQ(Q(move(DQ(c, s, z)), s, z), s, z) for constant integers c, such as a table of words."""

    exactness = EXACT

    def pattern(self, op: Patterns, c: Var) -> Roots:
        move = op.node(MovementRule.ops, op.constant(c), op.each(Var("rest", optional=True)), _name="move")
        return op.DequantizeLinear(move, Var("s"), Var("z", optional=True), _name="back")

    def check(self, move: ir.Node, back: ir.Node) -> str | None:
        return computes(move) or not_one_grid(constant=dq_operand(back)) or grid_relations.unusable(dq_operand(back))

    def rewrite(self, op: Builder, c: ir.Value, move: ir.Node, back: ir.Node) -> ir.Value:
        table = op.DequantizeLinear(c, *back.inputs[1:])
        moved = op.like(move, table, *move.inputs[1:])
        shape = described(moved, ir.DataType.FLOAT, move.outputs[0].shape).shape
        levels = described(op.QuantizeLinear(moved, *dq_operand(back).grid(op)), dq_operand(back).dtype, shape)
        return op.like(back, levels, *back.inputs[1:])
