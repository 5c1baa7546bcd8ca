"""A Gemm between Q/DQ nodes in its plain form: factors go into scales, transposes to the integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, LocalRule
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dequantized, dq_operand


class FoldGemmFactors(LocalRule):
    """alpha · DQ(a) · DQ(b, s) + beta · c = DQ(a) · DQ(b, alpha · s) + DQ(c'), up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, bias: Var | None = None) -> Roots:
        return op.Gemm(dequantized(op, "a"), dequantized(op, "b"), bias, _name="gemm")

    def check(self, a: ir.Node, b: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> str | None:
        alpha, beta = _factors(gemm)
        if alpha == 1.0 and (beta == 1.0 or bias is None):
            return "alpha and beta are 1 already"
        if not 0 < alpha < np.inf:
            return f"alpha is {alpha}, and a scale has to be positive"
        left, right = dq_operand(a), dq_operand(b)
        doubt = not_one_grid(input=left) or integer_layers.not_a_weight(left, right, integer_layers.gemm_axis(gemm))
        levels = None if doubt or bias is None else self._levels(left, right, bias, gemm)
        return levels if isinstance(levels, str) else doubt

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> ir.Value:
        left, right = dq_operand(a), dq_operand(b)
        scale = op.constant(integer_layers.like(right.scale, self._scales(right, gemm)), "scale")
        weight = op.DequantizeLinear(right.q, scale, right.zero_point, **b.attributes)
        levels = None if bias is None else self._levels(left, right, bias, gemm)
        assert not isinstance(levels, str), "the bias was checked"
        steps = left.scales()[0] * self._scales(right, gemm)
        added = None if levels is None else integer_layers.dequantized_bias(op, levels, steps)
        kept = {name: gemm.attributes[name] for name in ("transA", "transB") if name in gemm.attributes}
        return op.Gemm(a.outputs[0], weight, added, **kept)

    @staticmethod
    def _scales(b: Operand, gemm: ir.Node) -> np.ndarray:
        return np.asarray(np.float32(_factors(gemm)[0]) * b.scales())

    def _levels(self, a: Operand, b: Operand, bias: ir.Value, gemm: ir.Node) -> np.ndarray | str:
        """beta · c in steps of the new accumulator."""
        beta, channels = _factors(gemm)[1], query.known_shape(b.q)[integer_layers.gemm_axis(gemm)]
        steps = (a.scales()[0] * self._scales(b, gemm)).astype(np.float64)
        return integer_layers.bias_levels(bias, steps / beta, channels) if beta else np.zeros(channels)


class FoldGemmTranspose(LocalRule):
    """Gemm(DQ(a), b, transA=1) = Gemm(DQ(Transpose(a)), b): integers are transposed instead of floats."""

    exactness = EXACT

    def pattern(self, op: Patterns, b: Var, bias: Var | None = None) -> Roots:
        return op.Gemm(dequantized(op, "a"), b, bias, _attrs={"transA": 1}, _name="gemm")

    def check(self, a: ir.Node) -> str | None:
        return not_one_grid(input=dq_operand(a))

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Value, bias: ir.Value | None, gemm: ir.Node) -> ir.Value:
        turned = op.Transpose(a.inputs[0], perm=[1, 0])
        return op.like(gemm, op.DequantizeLinear(turned, *a.inputs[1:]), b, bias, _dropped=("transA",))


def _factors(gemm: ir.Node) -> tuple[float, float]:
    return query.float_(gemm, "alpha", 1.0), query.float_(gemm, "beta", 1.0)
