"""Boolean masks as arithmetic: 0 and 1 in float, from the Cast that reads a mask back to where the mask comes from.

The rules start at a Cast from bool to float that is marked as an indicator (see `masks.py`), and move it up.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, Rule
from intact.model import query
from intact.rules.float.masks import INDICATOR, MARK, MOVES

_GATHERS = frozenset({"Gather", "GatherND"})
_INDEX_INPUT = {"Gather": 1, "GatherND": 1, "GatherElements": 1, "ScatterND": 1, "ScatterElements": 1, "OneHot": 0}
_LONGEST_CHAIN = 12


class DropNeutralOperand(Rule):
    """a ∧ true = a and a ∨ false = a, in the shape of the result."""

    exactness = EXACT

    def pattern(self, op: Patterns, a: Var, c: Var) -> Roots:
        return op.node(("And", "Or"), a, op.constant(c), _name="root")

    def check(self, c: ir.Value, root: ir.Node) -> str | None:
        neutral = root.op_type == "And"
        if not (query.known_constant(c) == neutral).all():
            return f"{query.describe(c)} is not {str(neutral).lower()} throughout"
        return "the shape of the result is unknown" if query.static_shape(root.outputs[0]) is None else None

    def rewrite(self, op: Builder, a: ir.Value, root: ir.Node) -> ir.Value:
        shape = op.constant(np.array(query.static_shape(root.outputs[0]), np.int64), "shape")
        return op.Expand(a, shape)


class _CastBoth(Rule):
    """Cast(a ∘ b) = Cast(a) • Cast(b) for an operator ∘ on masks that is • on 0 and 1."""

    exactness = EXACT
    on_masks: ClassVar[str]
    on_numbers: ClassVar[str]

    def pattern(self, op: Patterns, a: Var, b: Var) -> Roots:
        return op.Cast(op.node(self.on_masks, a, b, _shared=True), _name="root")

    def check(self, a: ir.Value, b: ir.Value, root: ir.Node) -> str | None:
        return _no_indicator(root)

    def rewrite(self, op: Builder, a: ir.Value, b: ir.Value, root: ir.Node) -> ir.Value:
        return op.node(self.on_numbers, _cast(op, a, root), _cast(op, b, root))


class CastAnd(_CastBoth):
    """Cast(a ∧ b) = Cast(a) · Cast(b)."""

    on_masks, on_numbers = "And", "Mul"


class CastOr(_CastBoth):
    """Cast(a ∨ b) = max(Cast(a), Cast(b))."""

    on_masks, on_numbers = "Or", "Max"


class CastNot(Rule):
    """Cast(¬a) = 1 − Cast(a)."""

    exactness = EXACT

    def pattern(self, op: Patterns, a: Var) -> Roots:
        return op.Cast(op.Not(a, _shared=True), _name="root")

    def check(self, root: ir.Node) -> str | None:
        return _no_indicator(root)

    def rewrite(self, op: Builder, a: ir.Value, root: ir.Node) -> ir.Value:
        return _complement(op, a, root)


class CastMove(Rule):
    """Cast(move(a)) = move(Cast(a)), for operators that only move elements."""

    exactness = EXACT

    def pattern(self, op: Patterns, a: Var, rest: Var) -> Roots:
        move = op.node(sorted(MOVES | _GATHERS), a, op.each(rest), _name="move", _shared=True)
        return op.Cast(move, _name="root")

    def check(self, a: ir.Value, root: ir.Node) -> str | None:
        return _no_indicator(root) or (f"{query.describe(a)} is constant" if query.is_constant(a) else None)

    def rewrite(self, op: Builder, a: ir.Value, rest: tuple[ir.Value, ...], move: ir.Node, root: ir.Node) -> ir.Value:
        return op.like(move, _cast(op, a, root), *rest)


class _CastComparison(Rule):
    """The common part of the rules for a comparison of x, which is 0 or 1."""

    exactness = BOUNDED

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        return _no_indicator(root) or zero_one_doubt(x)


class CastTruth(_CastComparison):
    """Cast(Cast(x → bool)) = Cast(x), and the same for x > 0 and x = 1, for x of 0 and 1."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        truth = op.any_of(
            op.Cast(x, _shared=True),
            op.Equal(x, 1, _shared=True),
            op.Greater(x, op.any_of(op.constant(0), op.constant(0.5)), _shared=True),
            op.GreaterOrEqual(x, op.any_of(op.constant(0.5), op.constant(1)), _shared=True),
        )
        return op.Cast(truth, _name="root")

    def rewrite(self, op: Builder, x: ir.Value, root: ir.Node) -> ir.Value:
        return _cast(op, x, root)


class CastFalsehood(_CastComparison):
    """Cast(x = 0) = 1 − Cast(x), and the same for x < 1, for x of 0 and 1."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        falsehood = op.any_of(
            op.Equal(x, 0, _shared=True),
            op.Less(x, op.any_of(op.constant(0.5), op.constant(1)), _shared=True),
            op.LessOrEqual(x, op.any_of(op.constant(0), op.constant(0.5)), _shared=True),
        )
        return op.Cast(falsehood, _name="root")

    def rewrite(self, op: Builder, x: ir.Value, root: ir.Node) -> ir.Value:
        return _complement(op, x, root)


class CastProduct(_CastBoth):
    """Cast(a · b) = Cast(a) · Cast(b), for integers of 0 and 1."""

    exactness = BOUNDED
    on_masks = on_numbers = "Mul"

    def check(self, a: ir.Value, b: ir.Value, root: ir.Node) -> str | None:
        return super().check(a, b, root) or zero_one_doubt(a) or zero_one_doubt(b)


def mark(value: ir.Value, what: str) -> ir.Value:
    """Mark the node that makes the value as part of a mask."""
    node = value.producer()
    assert node is not None, f"{value.name!r} has no node to mark"
    node.metadata_props[MARK] = what
    return value


def is_indicator(value: ir.Value | None) -> bool:
    """True if the value holds 0 and 1 only, as far as structure tells: a mask in float, its complement, a product."""
    return _is_indicator(value, _LONGEST_CHAIN)


def _is_indicator(value: ir.Value | None, steps: int) -> bool:
    if value is None or steps == 0:
        return False
    array = query.constant(value)
    if array is not None:
        return bool(np.isin(array, (0, 1)).all()) if array.dtype.kind in "fiub" else False
    node = value.producer()
    if node is None or value.dtype == ir.DataType.BOOL:
        return value.dtype == ir.DataType.BOOL or _is_mask_input(value)
    if node.domain or node.op_type not in MOVES | _GATHERS | {"Cast", "Mul", "Sub", "Max", "Min"}:
        return False
    if node.op_type in ("Mul", "Max", "Min"):
        return all(_is_indicator(item, steps - 1) for item in node.inputs)
    if node.op_type == "Sub":
        return query.scalar(node.inputs[0]) == 1 and _is_indicator(node.inputs[1], steps - 1)
    return _is_indicator(node.inputs[0], steps - 1)


def _is_mask_input(value: ir.Value) -> bool:
    return value.is_graph_input() and _index_user(value) is None


def _index_user(value: ir.Value) -> ir.Node | None:
    return next((node for node, index in value.uses() if _INDEX_INPUT.get(node.op_type) == index), None)


def zero_one_doubt(value: ir.Value) -> str | None:
    """Refuse a value that may hold other numbers than 0 and 1, which masks are claimed to be made of."""
    if is_indicator(value):
        return None
    user = _index_user(value)
    if user is not None:
        return f"{query.describe(value)} also indexes {user.op_type} {user.name!r}, so that it is no mask of 0 and 1"
    return f"{query.describe(value)} is not known to hold 0 and 1 only"


def _no_indicator(root: ir.Node) -> str | None:
    marked = root.metadata_props.get(MARK) == INDICATOR
    return None if marked else "the result is no mask of attention"


def _cast(op: Builder, value: ir.Value, root: ir.Node) -> ir.Value:
    """The value in the type that the root casts to."""
    return mark(op.like(root, value), INDICATOR)


def _complement(op: Builder, value: ir.Value, root: ir.Node) -> ir.Value:
    dtype = ir.DataType(query.int_(root, "to", ir.DataType.FLOAT))
    one = op.constant(np.ones((), dtype.numpy()), "one")
    return mark(op.Sub(one, _cast(op, value, root)), INDICATOR)
