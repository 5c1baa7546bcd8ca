"""Scales of normalizations in the sign of their activations, which NPUs want, with the same values."""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, LocalRule
from intact.model import query
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import INT8, UINT8, dequantized, dq_operand, type_name
from intact.rules.quantized.signs import shifted, shifted_zero

UINT16 = ir.DataType.UINT16


class UnsignNormScale(LocalRule):
    """LayerNormalization(x, DQ(γ, s, z)) = LayerNormalization(x, DQ(γ + 128, s, z + 128)): uint8 beside unsigned x."""

    exactness = EXACT

    def pattern(self, op: Patterns, bias: Var | None = None) -> Roots:
        return op.LayerNormalization(dequantized(op, "x"), dequantized(op, "scale"), bias, _name="norm")

    def check(self, x: ir.Node, scale: ir.Node, norm: ir.Node) -> str | None:
        levels, data = dq_operand(scale), dq_operand(x)
        if levels.dtype != INT8:
            return f"the scale is {type_name(levels.dtype)}, not int8"
        if data.dtype not in (UINT8, UINT16):
            return f"the activations are {type_name(data.dtype)}, not unsigned"
        if not query.is_constant(levels.q):
            return "the scale is computed, not constant"
        if len(norm.outputs) > 1:
            return "it returns its statistics as well"
        return not_one_grid(scale=levels)

    def rewrite(self, op: Builder, bias: ir.Value | None, scale: ir.Node, norm: ir.Node) -> ir.Value:
        levels = dq_operand(scale)
        integers = op.constant(shifted(query.constant(levels.q)), "unsigned")
        turned = op.DequantizeLinear(integers, levels.scale, shifted_zero(op, levels))
        return op.LayerNormalization(norm.inputs[0], turned, bias, **norm.attributes)
