"""Kernels that add pairs of products in 16 bits, as x86 without VNNI does: where their sums may saturate."""

from __future__ import annotations

from typing import Self

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.integer_types import limits
from intact.rules.quantized.operand import Operand
from intact.rules.quantized.target_rule import TargetRule
from intact.targets.spec import Forms

INT16_MAX, UINT8_MAX = limits("int16")[1], limits("uint8")[1]


class SaturationRule(TargetRule):
    """A rule that moves a product onto kernels for uint8 × int8, and knows whether they saturate on the target."""

    def __init__(self, saturates: bool = False) -> None:
        self.saturates = saturates

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.saturates)

    def pairs_saturate(self, weight: np.ndarray | None, channel_axis: int) -> str | None:
        """Why a product by `weight`, int8 as kernels see it, may saturate; None stands for one that is computed."""
        if not self.saturates:
            return None
        missing = "uint8 x int8 saturates without VNNI"
        if weight is None:
            return f"{missing}, and the second operand is computed"
        largest = largest_pair(weight, channel_axis)
        if largest <= INT16_MAX:
            return None
        return f"{missing}: a sum of two products may reach {largest}, more than {INT16_MAX} (see --assume-vnni)"


def largest_pair(weight: np.ndarray, channel_axis: int) -> int:
    """The greatest |255·w₁ + 255·w₂| of two weights of one output channel, in whatever order kernels pair them."""
    rows = np.moveaxis(weight, channel_axis, 0).reshape(weight.shape[channel_axis], -1).astype(np.int64)
    if rows.shape[1] < 2:
        return int(np.abs(rows).max(initial=0)) * UINT8_MAX
    most = np.partition(rows, -2, axis=1)[:, -2:].clip(min=0).sum(axis=1)
    least = np.partition(rows, 1, axis=1)[:, :2].clip(max=0).sum(axis=1)
    return int(max(most.max(), -least.min())) * UINT8_MAX


def weight_of(operand: Operand) -> np.ndarray | None:
    """The constant integers of a weight, as signed as kernels would have them; None where it is computed."""
    integers = query.constant(operand.q)
    if integers is None or operand.dtype == ir.DataType.INT8:
        return integers
    return integers.astype(np.int64) - 128
