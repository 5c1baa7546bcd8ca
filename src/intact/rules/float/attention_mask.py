"""Masks of attention as arithmetic that NPUs take: an indicator times a finite depth, added to the scores.

Each rule replaces −∞ or a number near it by a finite depth (see `masks.py`). The claim: for masks of 0 and 1, in
rows with a live key, every weight moves by less than exp(spread of the scores − depth), which is 0 in float32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query
from intact.rules.float import identity
from intact.rules.float.indicator import is_indicator, mark, zero_one_doubt
from intact.rules.float.masks import (
    BIAS,
    FLOAT_DEPTH,
    INDICATOR,
    LEAST_DEPTH,
    MARK,
    MOVES,
    is_constant_mask,
    softmax_inputs,
)

_DEEPEST_LOOK = 8


class FillInverted(Rule):
    """Where(Cast(v → bool), −∞, v) = v · (−C), for v of 0 and 1."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, v: Var, low: Var) -> Roots:
        return op.Where(op.Cast(v, _shared=True), op.constant(low), v, _name="root")

    def check(self, v: ir.Value, low: ir.Value, root: ir.Node) -> str | None:
        return _low_doubt(low) or zero_one_doubt(v) or _use_doubt(root)

    def rewrite(self, op: Builder, v: ir.Value, low: ir.Value) -> ir.Value:
        return _times_depth(op, v, low, -1)


class _Fill(Rule):
    """The common part of the rules for scores x of which a mask m keeps some."""

    exactness = BOUNDED

    def check(self, m: ir.Value, low: ir.Value, x: ir.Value, root: ir.Node) -> str | None:
        return _low_doubt(low) or _scores_doubt(m, x) or _use_doubt(root)


class FillMasked(_Fill):
    """Where(m, −∞, x) = x + Cast(m) · (−C) before a Softmax."""

    def pattern(self, op: Patterns, m: Var, low: Var, x: Var) -> Roots:
        return op.Where(m, op.constant(low), x, _name="root")

    def rewrite(self, op: Builder, m: ir.Value, low: ir.Value, x: ir.Value, root: ir.Node) -> ir.Value:
        return _added(op, x, _times_depth(op, _indicator(op, m, x), low, -1), m, root)


class FillUnlessLive(_Fill):
    """Where(m, x, −∞) = x + (Cast(m) − 1) · C before a Softmax."""

    def pattern(self, op: Patterns, m: Var, x: Var, low: Var) -> Roots:
        return op.Where(m, x, op.constant(low), _name="root")

    def rewrite(self, op: Builder, m: ir.Value, low: ir.Value, x: ir.Value, root: ir.Node) -> ir.Value:
        one = op.constant(np.ones((), _dtype(x).numpy()), "one")
        below = op.Sub(_indicator(op, m, x), one)
        return _added(op, x, _times_depth(op, below, low, 1), m, root)


class BoundMask(Rule):
    """v · (−∞) = v · (−C) and (v − 1) · ∞ = (v − 1) · C, for v of 0 and 1, before a Softmax."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, v: Var, low: Var) -> Roots:
        return op.Mul(v, op.constant(low), _name="root")

    def check(self, v: ir.Value, low: ir.Value, root: ir.Node) -> str | None:
        factor = query.scalar(low)
        if factor is None or not abs(factor) >= LEAST_DEPTH:
            return f"the factor is not one number beyond ±{LEAST_DEPTH:g}"
        if root.metadata_props.get(MARK) == BIAS:
            return "the depth of the mask is already finite"
        if not (is_indicator(v) if factor < 0 else _is_indicator_less_one(v)):
            return f"{query.describe(v)} is not known to hold 0 and {-1 if factor > 0 else 1} only"
        return _use_doubt(root) or _sum_doubt(root)

    def rewrite(self, op: Builder, v: ir.Value, low: ir.Value) -> ir.Value:
        return _times_depth(op, v, low, 1 if float(query.scalar(low) or 0) > 0 else -1)


class BoundConstantMask(Rule):
    """x + k = x + max(k, −C) before a Softmax, for a constant k with elements of −∞."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, k: Var) -> Roots:
        return op.Add(x, op.constant(k), _name="root")

    def check(self, k: ir.Value, root: ir.Node) -> str | None:
        if root.metadata_props.get(MARK) == BIAS:
            return "the depth of the mask is already finite"
        # The uses first: the elements of a constant are many.
        doubt = _use_doubt(root)
        if doubt is None and not is_constant_mask(k):
            return f"{query.describe(k)} has no element below −{LEAST_DEPTH:g}"
        return doubt

    def rewrite(self, op: Builder, x: ir.Value, k: ir.Value) -> ir.Value:
        array = query.known_constant(k)
        bounded = op.constant(np.maximum(array, array.dtype.type(-FLOAT_DEPTH)), "mask")
        return mark(op.Add(x, bounded), BIAS)


class DropNanGuard(Rule):
    """Where(IsNaN(s), 0, s) = s for s = Softmax(x), where no row of x is −∞ throughout."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var) -> Roots:
        weights = op.Softmax(x, _shared=True, _name="softmax")
        return op.Where(op.IsNaN(weights), 0.0, weights, _name="root")

    def check(self, x: ir.Value, softmax: ir.Node, root: ir.Node) -> str | None:
        if query.rank(root.outputs[0]) != query.rank(softmax.outputs[0]):
            return "the constant raises the rank"
        source = _source_of_infinity(x, _DEEPEST_LOOK)
        if source is not None:
            return f"{query.describe(source)} holds −∞, and could make a row −∞ throughout"
        return identity.output_keeps_name(softmax.outputs[0], root)

    def rewrite(self, op: Builder, softmax: ir.Node) -> ir.Value:
        return softmax.outputs[0]


def _dtype(x: ir.Value) -> ir.DataType:
    assert x.dtype is not None, "checked"
    return x.dtype


def _low_doubt(low: ir.Value) -> str | None:
    array = query.known_constant(low)
    # Written so that NaN is refused as well.
    if array.size == 1 and array.dtype.kind == "f" and bool((array <= -LEAST_DEPTH).all()):
        return None
    return f"{query.describe(low)} is not one number below −{LEAST_DEPTH:g}"


def _scores_doubt(m: ir.Value, x: ir.Value) -> str | None:
    if x.dtype is None or not x.dtype.is_floating_point():
        return f"{query.describe(x)} is not known to be float"
    if query.is_constant(m) and query.is_constant(x):
        return "it is constant"
    return None


def _use_doubt(root: ir.Node) -> str | None:
    return None if softmax_inputs(root.outputs[0]) is not None else "the result has other uses than a Softmax"


def _sum_doubt(root: ir.Node) -> str | None:
    """Refuse a result that may be the scores themselves: it reaches a Softmax without being added to anything."""
    values = [root.outputs[0]]
    for value in values:
        users = query.consumers(value)
        if any(user.op_type == "Softmax" for user in users):
            return "the result is not added to scores"
        values += [user.outputs[0] for user in users if user.op_type in MOVES]
    return None


def _is_indicator_less_one(value: ir.Value) -> bool:
    """True if the value is v − 1 for an indicator v."""
    node = value.producer()
    if node is None or node.domain:
        return False
    if node.op_type in MOVES:
        return node.inputs[0] is not None and _is_indicator_less_one(node.inputs[0])
    if node.op_type == "Add":
        operands = list(node.inputs)
        return any(query.scalar(one) == -1 and is_indicator(v) for one, v in (operands, operands[::-1]))
    return node.op_type == "Sub" and query.scalar(node.inputs[1]) == 1 and is_indicator(node.inputs[0])


def _indicator(op: Builder, m: ir.Value, x: ir.Value) -> ir.Value:
    return mark(op.Cast(m, to=int(_dtype(x))), INDICATOR)


def _times_depth(op: Builder, value: ir.Value, low: ir.Value, sign: int) -> ir.Value:
    """The value times ±C, marked, so that C can be chosen anew from scores that were seen."""
    array = query.known_constant(low)
    depth = min(abs(float(array.reshape(-1)[0])), FLOAT_DEPTH)
    return mark(op.Mul(value, op.constant(np.array(sign * depth, array.dtype), "mask_depth")), BIAS)


def _added(op: Builder, x: ir.Value, bias: ir.Value, m: ir.Value, root: ir.Node) -> ir.Value:
    """x + bias; the bias alone where x is 0 and has no say in the shape."""
    array = query.constant(x)
    is_zero = array is not None and not array.any()
    if is_zero and (query.same_shape(m, root.outputs[0]) or query.is_scalar(x)):
        return bias
    return op.Add(x, bias)


def _source_of_infinity(value: ir.Value | None, steps: int) -> ir.Value | None:
    """A constant with −∞ that reaches the value through sums, choices and moves."""
    array = query.constant(value)
    if array is not None:
        return value if array.dtype.kind == "f" and not np.isfinite(array).all() else None
    node = None if value is None else value.producer()
    if node is None or steps == 0 or node.op_type not in MOVES | {"Add", "Where", "Mul"}:
        return None
    found = (_source_of_infinity(item, steps - 1) for item in node.inputs)
    return next((item for item in found if item is not None), None)
