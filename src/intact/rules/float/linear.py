"""Linear layers in one form: Gemm without factors, with the weight as it is multiplied."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, Rule
from intact.model import query

_FACTORS = ("alpha", "beta")


class FoldFloatGemmFactors(Rule):
    """α·x·W + β·b = x·(α·W) + β·b with both products taken beforehand, up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var | None = None) -> Roots:
        return op.Gemm(x, op.constant(w), op.constant(b), _name="gemm")

    def check(self, gemm: ir.Node) -> str | None:
        factors = [query.float_(gemm, name, 1.0) for name in _FACTORS]
        if factors == [1.0, 1.0]:
            return "alpha and beta are 1"
        scaled = [_scaled(value, factor) for value, factor in zip(gemm.inputs[1:], factors, strict=False)]
        finite = all(array is None or np.isfinite(array).all() for array in scaled)
        return None if finite else "the result would leave the range of its type"

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value | None, gemm: ir.Node) -> ir.Value:
        weight, bias = _scaled(w, query.float_(gemm, "alpha", 1.0)), _scaled(b, query.float_(gemm, "beta", 1.0))
        assert weight is not None, "the pattern takes constants only"
        constants = op.constant(weight, "weight"), None if bias is None else op.constant(bias, "bias")
        return op.like(gemm, x, *constants, _dropped=_FACTORS)


class TransposeGemmInput(Rule):
    """Gemm(x, transA=1) = Gemm(Transpose(x))."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, rest: Var) -> Roots:
        return op.Gemm(x, op.each(rest), _name="gemm")

    def check(self, gemm: ir.Node) -> str | None:
        return None if query.int_(gemm, "transA", 0) else "transA is 0"

    def rewrite(self, op: Builder, x: ir.Value, rest: tuple[ir.Value, ...], gemm: ir.Node) -> ir.Value:
        return op.like(gemm, op.Transpose(x, perm=[1, 0]), *rest, _dropped=("transA",))


class MakeGemm(Rule):
    """x·W + b = Gemm(x, W, b) for a matrix x and one number of b for each column, up to float rounding."""

    exactness = BOUNDED
    creates = (("", "Gemm"),)

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var) -> Roots:
        return op.Add(op.MatMul(x, op.constant(w)), op.constant(b))

    def check(self, x: ir.Value, w: ir.Value, b: ir.Value) -> str | None:
        if query.rank(x) != 2 or query.rank(w) != 2:
            return f"{query.describe(x)} of rank {query.rank(x)} and {query.describe(w)} are not two matrices"
        shape, columns = query.static_shape(b), (query.static_shape(w) or (0, 0))[1]
        return None if shape == (columns,) else f"{query.describe(b)} is not one number for each of {columns} columns"

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value) -> ir.Value:
        return op.Gemm(x, w, b)


def _scaled(value: ir.Value | None, factor: float) -> np.ndarray | None:
    array = query.constant(value)
    if array is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        scaled: np.ndarray = (array.astype(np.float64) * factor).astype(array.dtype)
    return scaled
