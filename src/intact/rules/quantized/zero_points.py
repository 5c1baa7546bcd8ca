"""Weights whose zero points differ by channel, in forms that every integer kernel takes: docs/zero_points.md.

A kernel for `w - z_c` with distinct `z_c` is missing or slow nearly everywhere. The difference has nine bits: where
it fits eight it is the weight, where it does not it is the sum of two weights, each with its copy of the input.

Where uint8 × int8 saturates, uint8 × uint8 does not: weights are then unsigned, around 128. For int8 activations, which
have no such kernel, they are the sum of four small ones.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots
from intact.matching.rewriter import EXACT, LocalRule
from intact.model import query
from intact.rules.quantized.copies import fits
from intact.rules.quantized.operand import INT8, UINT8, type_name
from intact.rules.quantized.product import CONVOLUTIONS, MATRICES, Product, centred, matches, not_distinct, product
from intact.rules.quantized.saturation import SaturationRule


class UniteZeroPoints(LocalRule):
    """ConvInteger(x, w - [z, z, …]) = ConvInteger(x, w - z): kernels take one zero point, and there is only one."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (("", "ConvInteger"),))

    def check(self, node: ir.Node) -> str | None:
        zeros = query.constant(query.input_(node, 3))
        if zeros is None or zeros.size == 1:
            return "the weight has one zero point, or one that is computed, or none"
        return None if (zeros == zeros[0]).all() else "zero points differ by channel"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        zeros = query.known_constant(node.inputs[3])
        return op.ConvInteger(*node.inputs[:3], op.constant(zeros[0], "weight_zero_point"), **node.attributes)


class AbsorbZeroPoints(SaturationRule):
    """Σ x·(w - z_c) = Σ x·v with v = w - z_c, where every v is an int8."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, CONVOLUTIONS + MATRICES)

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        reason = not_distinct(found) or not_activations(found)
        if reason is not None:
            return reason
        weight = centred(found)
        if not fits(weight):
            return f"w - zero_point reaches from {weight.min()} to {weight.max()}, beyond int8"
        return None if found.x.dtype == UINT8 else self.pairs_saturate(weight, found.w.axis)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found = product(node)
        weight = centred(found)
        return found.with_weight(op, weight, unsigned=self.pairs_saturate(weight, found.w.axis) is not None)


def not_activations(found: Product) -> str | None:
    """Refuse activations of a product that are not of a type that its kernels take."""
    return None if found.x.dtype in (UINT8, INT8) else f"activations are {type_name(found.x.dtype)}, not uint8 or int8"
