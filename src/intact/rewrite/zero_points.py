"""Weights whose zero points differ by channel, in forms that every integer kernel takes: docs/zero_points.md.

A kernel for `w - z_c` with distinct `z_c` is missing or slow nearly everywhere. The difference has nine bits: where
it fits eight it is the weight, where it does not it is the sum of two weights, each with its copy of the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intact.graph import query
from intact.graph.builder import Builder
from intact.graph.pattern import Patterns
from intact.graph.rewriter import EXACT, Rule
from intact.rewrite import depthwise, symmetric
from intact.rewrite.copies import copy_indices, fits, split
from intact.rewrite.operand import INT8, UINT8, type_name
from intact.rewrite.product import (
    CONVOLUTIONS,
    MATRICES,
    DistinctRule,
    Product,
    centred,
    matches,
    not_distinct,
    product,
)
from intact.rewrite.saturation import SaturationRule


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
        return self.pairs_saturate(weight, found.w.axis)

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        found = product(node)
        return found.with_weight(op, centred(found))


class _Duplicate(DistinctRule):
    """What the rules below share: the weight split in parts, and as many copies of the activations."""

    exactness = EXACT

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        reason = not_distinct(found) or _not_activations(found) or self.has_kernel(found)
        if reason is not None:
            return reason
        return self.pairs_saturate(np.concatenate(split(centred(found)), found.w_axis), found.w.axis)

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        found = product(node)
        parts = split(centred(found))
        copies = _copies(op, found, len(parts))
        copies.dtype = found.x.dtype
        return found.with_weight(op, np.concatenate(parts, found.w_axis), copies)


class DuplicateConvInput(_Duplicate):
    """Conv(x, w - z_c) = Conv(Concat(x, x), Concat(a, b)) with int8 a + b = w - z_c; groups get their own copies."""

    def pattern(self, op: Patterns) -> Any:
        return matches(op, CONVOLUTIONS)


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
    AbsorbZeroPoints(),
    *depthwise.RULES,
    DuplicateConvInput(),
    DuplicateMatMulInput(),
    *symmetric.RULES,
)
