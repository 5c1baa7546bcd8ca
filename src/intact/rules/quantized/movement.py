"""Operators that move values without changing them: they do the same to integers, so Q goes before and DQ after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import EXACT, LocalRule
from intact.model import query
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dequantized, described, dq_operand, q_operand, quantized
from intact.rules.quantized.target_rule import TargetRule
from intact.targets.spec import Forms

# Every element of their output is an element of their first input, or the greatest of some: a scale is positive.
MOVING = (
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Reshape",
    "Resize",
    "Slice",
    "SpaceToDepth",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
)
_INTEGERS = frozenset(("uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2"))


class MovementRule(TargetRule):
    """A rule that lets an operator move integers, where the target has a kernel for it in their type."""

    exactness = EXACT
    ops: ClassVar[tuple[str, ...]] = MOVING
    has_parts: ClassVar[bool] = False
    """True if every output of the operator, however many, is a part of its first input."""

    def __init__(self, types: Mapping[str, frozenset[str]] | None = None) -> None:
        self._types = dict.fromkeys(self.ops, _INTEGERS) if types is None else types

    def for_target(self, forms: Forms) -> Self:
        return type(self)({op: forms.moves.get(op, frozenset()) for op in self.ops})

    def _moves(self, op: Patterns, x: Var | Output) -> Output:
        # One output: the indices of a MaxPool have no integers to come from.
        return op.node(self.ops, x, op.each(Var("rest", optional=True)), _name="move")

    def _no_kernel(self, move: ir.Node, operand: Operand) -> str | None:
        name = "an unknown type" if operand.dtype is None else operand.dtype.name.lower()
        if name not in self._types[move.op_type]:
            return f"the target has no {move.op_type} of {name}"
        if len(move.outputs) > 1 and not self.has_parts:
            return f"{move.op_type} has {len(move.outputs)} outputs"
        return computes(move) or not_one_grid(input=operand) or grid_relations.unusable(operand)


class MoveIntegers(MovementRule):
    """Q(move(DQ(x, s, z)), s, z) = move(x)."""

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, self._moves(op, dequantized(op, "first")), "last")

    def check(self, first: ir.Node, move: ir.Node, last: ir.Node) -> str | None:
        return grid_relations.different(dq_operand(first), q_operand(last)) or self._no_kernel(move, dq_operand(first))

    def rewrite(self, op: Builder, first: ir.Node, move: ir.Node) -> ir.Value:
        return _moved(op, move, dq_operand(first))


class ConcatIntegers(MovementRule):
    """Concat(DQ(x₁, s, z), DQ(x₂, s, z), …) = DQ(Concat(x₁, x₂, …), s, z)."""

    ops: ClassVar[tuple[str, ...]] = ("Concat",)

    def pattern(self, op: Patterns, xs: Var) -> Roots:
        parts = op.DequantizeLinear(xs, Var("scales"), Var("zeros", optional=True), _name="parts")
        return op.Concat(op.each(parts), _name="move")

    def check(self, parts: Sequence[ir.Node], move: ir.Node) -> str | None:
        first = dq_operand(parts[0])
        differing = (grid_relations.different(first, dq_operand(part)) for part in parts[1:])
        return next((reason for reason in differing if reason), None) or self._no_kernel(move, first)

    def rewrite(self, op: Builder, parts: Sequence[ir.Node], move: ir.Node) -> ir.Value:
        joined = op.like(move, *(part.inputs[0] for part in parts))
        joined = described(joined, dq_operand(parts[0]).dtype, move.outputs[0].shape)
        return op.like(parts[0], joined, *parts[0].inputs[1:])


class TransposeWeight(LocalRule):
    """Transpose(DQ(w, s, z, axis)) = DQ(wᵀ, s, z, axis′) for a constant w."""

    exactness = EXACT

    def pattern(self, op: Patterns, w: Var, s: Var, z: Var | None = None) -> Roots:
        weight = op.DequantizeLinear(op.constant(w), s, z, _shared=True, _name="first")
        return op.Transpose(weight, _name="move")

    def check(self, first: ir.Node) -> str | None:
        return "the weight is quantized in blocks" if dq_operand(first).block_size else None

    def rewrite(self, op: Builder, w: ir.Value, first: ir.Node, move: ir.Node) -> ir.Value:
        integers = query.known_constant(w)
        order = query.ints(move, "perm", tuple(range(integers.ndim))[::-1])
        turned = op.constant(np.ascontiguousarray(integers.transpose(order)), "weight")
        axis = order.index(dq_operand(first).axis % max(integers.ndim, 1))
        return op.like(first, turned, *first.inputs[1:], axis=axis)


class DequantizeAfterMove(MovementRule):
    """move(DQ(x, s, z)) = DQ(move(x), s, z), unless the move makes the tensor larger."""

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var | None = None) -> Roots:
        return self._moves(op, op.DequantizeLinear(x, s, z, _name="first"))

    def check(self, x: ir.Value, first: ir.Node, move: ir.Node) -> str | None:
        if query.is_constant(x):
            return f"{x.name!r} is constant"
        return self._no_kernel(move, dq_operand(first)) or _grows(move.inputs[0], move.outputs[0])

    def rewrite(self, op: Builder, first: ir.Node, move: ir.Node) -> ir.Value:
        return op.like(first, _moved(op, move, dq_operand(first)), *first.inputs[1:])


class QuantizeBeforeMove(MovementRule):
    """Q(move(x), s, z) = move(Q(x, s, z)), unless the move makes the tensor smaller without looking at its values."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return quantized(op, self._moves(op, x), "last")

    def check(self, x: ir.Value, move: ir.Node, last: ir.Node) -> str | None:
        if query.is_constant(x):
            return f"{x.name!r} is constant"
        doubt = self._no_kernel(move, q_operand(last))
        return doubt or (None if move.op_type == "MaxPool" else _grows(move.outputs[0], x))

    def rewrite(self, op: Builder, x: ir.Value, move: ir.Node, last: ir.Node) -> ir.Value:
        levels = described(op.like(last, x, *last.inputs[1:]), q_operand(last).dtype, x.shape)
        return _moved(op, move, q_operand(last)._replace(q=levels))


def _moved(op: Builder, move: ir.Node, x: Operand) -> ir.Value:
    return described(op.like(move, x.q, *move.inputs[1:]), x.dtype, move.outputs[0].shape)


def computes(move: ir.Node) -> str | None:
    """Refuse an operator that moves values in most of its forms and does more in this one."""
    if move.op_type != "Resize":
        return None
    fills = query.string(move, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    repeats = query.string(move, "mode", "nearest") == "nearest" and not fills
    return None if repeats else "this Resize computes values that it is not given"


def _grows(before: ir.Value | None, after: ir.Value) -> str | None:
    """Refuse a move on the other side of which Q or DQ would have more to do."""
    small, large = query.static_shape(before), query.static_shape(after)
    if small is None or large is None or math.prod(large) <= math.prod(small):
        return None
    return f"it would convert {math.prod(large)} elements instead of {math.prod(small)}"
