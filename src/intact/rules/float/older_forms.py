"""Operators that a target does not have, in older ones that mean the same.

Each rule is for targets whose table lacks what it replaces: their toolchains read older opsets only, or compute the
newer form worse.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query


class GeluToErf(Rule):
    """Gelu(x) = x/2 · (1 + erf(x/√2)), up to float rounding."""

    exactness = BOUNDED
    creates = (("", "Erf"), ("", "Add"), ("", "Mul"))
    replaces = (("", "Gelu"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Gelu(x, _attrs={"approximate": lambda found: found in (None, "none")})

    def check(self, x: ir.Value) -> str | None:
        return None if x.dtype == ir.DataType.FLOAT else f"{x.name!r} is not float32"

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        grown = op.Add(op.Erf(op.Mul(x, _number(op, math.sqrt(0.5)))), _number(op, 1.0))
        return op.Mul(op.Mul(x, grown), _number(op, 0.5))


class GeluToTanh(Rule):
    """Gelu(x, approximate=tanh) = x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³))), up to float rounding."""

    exactness = BOUNDED
    creates = (("", "Tanh"), ("", "Add"), ("", "Mul"))
    replaces = (("", "Gelu"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Gelu(x, _attrs={"approximate": "tanh"})

    def check(self, x: ir.Value) -> str | None:
        return None if x.dtype == ir.DataType.FLOAT else f"{x.name!r} is not float32"

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        cube = op.Mul(op.Mul(op.Mul(x, x), x), _number(op, 0.044715))
        inner = op.Mul(op.Add(x, cube), _number(op, math.sqrt(2 / math.pi)))
        return op.Mul(op.Mul(x, op.Add(op.Tanh(inner), _number(op, 1.0))), _number(op, 0.5))


class GlobalPoolToMean(Rule):
    """GlobalAveragePool(x) = ReduceMean(x) over all axes behind the second, up to the order of the sum."""

    exactness = BOUNDED
    creates = (("", "ReduceMean"),)
    replaces = (("", "GlobalAveragePool"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.GlobalAveragePool(x)

    def check(self, x: ir.Value) -> str | None:
        return f"the rank of {x.name!r} is unknown" if query.rank(x) is None else None

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        axes = range(2, query.rank(x) or 0)
        return op.ReduceMean(x, op.constant(np.array(axes, np.int64), "axes"), keepdims=1)


def _number(op: Builder, value: float) -> ir.Value:
    return op.constant(np.array(value, np.float32), "number")
