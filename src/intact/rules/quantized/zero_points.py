"""Weights whose zero points differ by channel, in forms that every integer kernel takes: docs/zero_points.md.

A kernel for `w - z_c` with distinct `z_c` is missing or slow nearly everywhere. The difference has nine bits: where
it fits eight it is the weight, where it does not it is the sum of two weights, each with its copy of the input.

Where uint8 × int8 saturates, uint8 × uint8 does not: weights are then unsigned, around 128. For int8 activations, which
have no such kernel, they are the sum of four small ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns
from intact.matching.rewriter import EXACT, LocalRule, Rule
from intact.model import query
from intact.rules.quantized import depthwise, integer_layers, symmetric
from intact.rules.quantized.copies import copy_indices, fits, split, split_small
from intact.rules.quantized.operand import INT8, UINT8, dq_operand, not_one_grid, not_one_type, q_operand, type_name
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
from intact.rules.quantized.saturation import SaturationRule
from intact.rules.quantized.to_qlinear import ConvToQLinear
from intact.targets.spec import Forms


class UniteZeroPoints(LocalRule):
    """ConvInteger(x, w - [z, z, …]) = ConvInteger(x, w - z): kernels take one zero point, and there is only one."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Any:
        return matches(op, (("", "ConvInteger"),))

    def check(self, node: ir.Node) -> str | None:
        zeros = query.constant(query.input_(node, 3))
        if zeros is None or zeros.size == 1:
            return "the weight has one zero point, or one that is computed, or none"
        return None if (zeros == zeros[0]).all() else "zero points differ by channel"

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        zeros = query.constant(node.inputs[3])
        assert zeros is not None, "the check saw it"
        attributes: dict[str, Any] = dict(node.attributes)
        return op.ConvInteger(*node.inputs[:3], op.constant(zeros[0], "weight_zero_point"), **attributes)


class AbsorbZeroPoints(SaturationRule):
    """Σ x·(w - z_c) = Σ x·v with v = w - z_c, where every v is an int8."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Any:
        return matches(op, CONVOLUTIONS + MATRICES)

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        reason = not_distinct(found) or _not_activations(found)
        if reason is not None:
            return reason
        weight = centred(found)
        if not fits(weight):
            return f"w - zero_point reaches from {weight.min()} to {weight.max()}, beyond int8"
        return None if found.x.dtype == UINT8 else self.pairs_saturate(weight, found.w.axis)

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        found = product(node)
        weight = centred(found)
        return found.with_weight(op, weight, unsigned=self.pairs_saturate(weight, found.w.axis) is not None)


class _Duplicate(DistinctRule):
    """What the rules below share: the weight split in parts, and as many copies of the activations."""

    exactness = EXACT

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        return not_distinct(found) or _not_activations(found) or self.has_kernel(found)

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        found = product(node)
        parts = split(centred(found))
        saturates = self.pairs_saturate(np.concatenate(parts, found.w_axis), found.w.axis) is not None
        unsigned = saturates and found.x.dtype == UINT8
        parts = split_small(centred(found)) if saturates and not unsigned else parts
        copies = _copies(op, found, len(parts))
        copies.dtype = found.x.dtype
        return found.with_weight(op, np.concatenate(parts, found.w_axis), copies, unsigned=unsigned)


class DuplicateConvInput(_Duplicate):
    """Conv(x, w - z_c) = Conv(Concat(x, x), Concat(a, b)) with int8 a + b = w - z_c; groups get their own copies."""

    def pattern(self, op: Patterns) -> Any:
        return matches(op, CONVOLUTIONS)


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
            or not_one_type(input=data, output=output)
            or not_one_grid(input=data, output=output)
            or integer_layers.not_a_weight(data, weight, 0)
            or integer_layers.not_a_bias(bias, data, weight, output.step, 0)
        )


class DuplicateMatMulInput(_Duplicate):
    """x · (w - z_c) = Concat(x, x) · Concat(a, b) with int8 a + b = w - z_c, one zero point for each column."""

    def pattern(self, op: Patterns) -> Any:
        return matches(op, MATRICES)


def _not_activations(found: Product) -> str | None:
    return None if found.x.dtype in (UINT8, INT8) else f"activations are {type_name(found.x)}, not uint8 or int8"


def _copies(op: Builder, found: Product, count: int) -> Any:
    """The activations as often as the weight has parts; every group of channels has its copies together."""
    if found.group == 1:
        return op.Concat(*[found.x.q] * count, axis=found.x_axis)
    shape = query.static_shape(found.w.q)
    assert shape is not None, "a constant has a shape"
    return op.Gather(found.x.q, op.constant(copy_indices(shape[1], found.group, count), "copies"), axis=1)


RULES: tuple[Rule, ...] = (
    UniteZeroPoints(),
    AbsorbZeroPoints(),
    *depthwise.RULES,
    RefusedConvToQLinear(),
    DuplicateConvInput(),
    DuplicateMatMulInput(),
    *symmetric.RULES,
)
