"""Pad and Split of integers: a Pad moves values and adds one of its own, a Split has several results."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import Replacement
from intact.model import query
from intact.rules.quantized import grid_relations
from intact.rules.quantized.movement import MovementRule
from intact.rules.quantized.operand import Operand, dequantized, described, dq_operand, q_operand, quantized

FAMILY = "movement"


class PadRule(MovementRule):
    """A rule that lets a Pad move integers; where it pads with a value, that is quantized beforehand."""

    ops: ClassVar[tuple[str, ...]] = ("Pad",)

    def _not_padded(self, move: ir.Node, operand: Operand) -> str | None:
        if query.input_(move, 2) is not None and query.scalar(move.inputs[2]) is None:
            return "the value that it pads with is computed, not constant"
        return self._no_kernel(move, operand)


class PadIntegers(PadRule):
    """Q(Pad(DQ(x, s, z), c), s, z) = Pad(x, Q(c, s, z))."""

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, self._moves(op, dequantized(op, "first")), "last")

    def check(self, first: ir.Node, move: ir.Node, last: ir.Node) -> str | None:
        return grid_relations.different(dq_operand(first), q_operand(last)) or self._not_padded(move, dq_operand(first))

    def rewrite(self, op: Builder, first: ir.Node, move: ir.Node, last: ir.Node) -> ir.Value:
        return _padded(op, move, first.inputs[0], q_operand(last))


class QuantizeBeforePad(PadRule):
    """Q(Pad(x, c), s, z) = Pad(Q(x, s, z), Q(c, s, z))."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return quantized(op, self._moves(op, x), "last")

    def check(self, x: ir.Value, move: ir.Node, last: ir.Node) -> str | None:
        return f"{x.name!r} is constant" if query.is_constant(x) else self._not_padded(move, q_operand(last))

    def rewrite(self, op: Builder, x: ir.Value, move: ir.Node, last: ir.Node) -> ir.Value:
        integers = described(op.like(last, x, *last.inputs[1:]), q_operand(last).dtype, x.shape)
        return _padded(op, move, integers, q_operand(last))


def _padded(op: Builder, move: ir.Node, x: ir.Value | None, operand: Operand) -> ir.Value:
    value: ir.Value | None = None
    if query.string(move, "mode", "constant") == "constant":
        real = np.float32(query.scalar(query.input_(move, 2)) or 0.0)
        value = op.constant(grid_relations.quantize(np.asarray(real), operand), "padding")
    return op.like(move, x, move.inputs[1], value, query.input_(move, 3))


class SplitIntegers(MovementRule):
    """Split(DQ(x, s, z)) = DQ(x₁, s, z), DQ(x₂, s, z), … with x₁, x₂, … = Split(x)."""

    ops: ClassVar[tuple[str, ...]] = ("Split",)
    has_parts = True

    def pattern(self, op: Patterns) -> Roots:
        return op.every_output(self._moves(op, dequantized(op, "first")))

    def check(self, first: ir.Node, move: ir.Node) -> str | None:
        return self._no_kernel(move, dq_operand(first))

    def rewrite(self, op: Builder, first: ir.Node, move: ir.Node) -> Replacement:
        parts = op.outputs_like(move, first.inputs[0], *move.inputs[1:])
        for part, before in zip(parts, move.outputs, strict=True):
            described(part, dq_operand(first).dtype, before.shape)
        return [op.like(first, part, *first.inputs[1:]) for part in parts]
