"""Reciprocals as divisions: NPUs divide well, and compute the reciprocals of small numbers wrongly."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query


class ReciprocalAsDiv(Rule):
    """Reciprocal(x) = 1 / x, up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Reciprocal(x)

    def check(self, x: ir.Value) -> str | None:
        return None if x.dtype is not None else f"the type of {x.name!r} is unknown"

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        assert x.dtype is not None, "checked"
        return op.Div(op.constant(np.ones((), x.dtype.numpy()), "one"), x)


class MulByInverse(Rule):
    """a · (1 / b) = a / b, up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, a: Var, b: Var) -> Roots:
        return op.Mul(a, op.Div(1.0, b, _name="inverse"))

    def check(self, b: ir.Value, inverse: ir.Node) -> str | None:
        if query.is_constant(b):
            return "the divisor is a constant"
        if query.rank(b) is None or query.rank(b) != query.rank(inverse.outputs[0]):
            return "the inverse may have more dimensions than the divisor"
        return None

    def rewrite(self, op: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
        return op.Div(a, b)
