"""Weights whose zero points differ by channel and do not fit int8: the sum of two, each with its copy of the input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots
from intact.matching.rewriter import EXACT
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.copies import copy_indices, split, split_small
from intact.rules.quantized.operand import UINT8, described, dq_operand, q_operand
from intact.rules.quantized.product import (
    CONVOLUTIONS,
    MATRICES,
    DistinctRule,
    Product,
    centred,
    matches,
    not_distinct,
    product,
)
from intact.rules.quantized.to_qlinear import ConvToQLinear
from intact.rules.quantized.zero_points import not_activations
from intact.targets.spec import Forms

FAMILY = "zero_points"


class RefusedConvToQLinear(ConvToQLinear, DistinctRule):
    """Q(Conv(DQ(x), DQ(w), b)) = QLinearConv(x, w, b) where that has no kernel: other rules take its zero points.

    A runtime that makes one kernel of the three nodes refuses to run what it made.
    """

    exact_in_integers = True

    def is_needed(self, forms: Forms) -> bool:
        return "QLinearConv" not in forms.takes_distinct

    def check(self, x: ir.Node, w: ir.Node, y: ir.Node, bias: ir.Value | None, conv: ir.Node) -> str | None:
        data, weight, output = dq_operand(x), dq_operand(w), q_operand(y)
        return (
            not_distinct(Product(conv, data, weight, 1, 1))
            or integer_layers.not_on_integers(data, weight, 0, output)
            or integer_layers.not_a_bias(bias, data, weight, output.step, 0)
        )


class _Duplicate(DistinctRule):
    """The common part of the rules below: the weight split in parts, and as many copies of the activations."""

    exactness = EXACT

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        return not_distinct(found) or not_activations(found) or self.has_kernel(found)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found = product(node)
        parts = split(centred(found))
        saturates = self.pairs_saturate(np.concatenate(parts, found.w_axis), found.w.axis) is not None
        unsigned = saturates and found.x.dtype == UINT8
        parts = split_small(centred(found)) if saturates and not unsigned else parts
        copies = described(_copies(op, found, len(parts)), found.x.dtype, None)
        return found.with_weight(op, np.concatenate(parts, found.w_axis), copies, unsigned=unsigned)


class DuplicateConvInput(_Duplicate):
    """Conv(x, w - z_c) = Conv(Concat(x, x), Concat(a, b)) with int8 a + b = w - z_c; groups get their own copies."""

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, CONVOLUTIONS)


class DuplicateMatMulInput(_Duplicate):
    """x · (w - z_c) = Concat(x, x) · Concat(a, b) with int8 a + b = w - z_c, one zero point for each column."""

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, MATRICES)


def _copies(op: Builder, found: Product, count: int) -> ir.Value:
    """The activations as often as the weight has parts; every group of channels has its copies together."""
    if found.group == 1:
        return op.Concat(*[found.x.q] * count, axis=found.x_axis)
    shape = query.known_shape(found.w.q)
    return op.Gather(found.x.q, op.constant(copy_indices(shape[1], found.group, count), "copies"), axis=1)
