"""Kernels that add pairs of products in 16 bits, as x86 without VNNI does: where their sums may saturate."""

from __future__ import annotations

from typing import Self

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.integer import INT16_MAX, largest_pair
from intact.rules.quantized.operand import Operand
from intact.rules.quantized.target_rule import TargetRule
from intact.targets.spec import Forms


class SaturationRule(TargetRule):
    """A rule that moves a product onto kernels for uint8 × int8, and knows whether they saturate on the target."""

    def __init__(self, saturates: bool = False) -> None:
        self.saturates = saturates

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.saturates)

    def pairs_saturate(self, weight: np.ndarray | None, channel_axis: int) -> str | None:
        """Refuse a product by `weight`, int8 as kernels see it, that may saturate; None stands for a computed one."""
        if not self.saturates:
            return None
        missing = "uint8 x int8 saturates without VNNI"
        if weight is None:
            return f"{missing}, and the second operand is computed"
        largest = largest_pair(weight, channel_axis)
        if largest <= INT16_MAX:
            return None
        return f"{missing}: a sum of two products may reach {largest}, more than {INT16_MAX} (see --assume-vnni)"


def weight_of(operand: Operand) -> np.ndarray | None:
    """The constant integers of a weight, as signed as kernels would have them; None where it is computed."""
    integers = query.constant(operand.q)
    if integers is None or operand.dtype == ir.DataType.INT8:
        return integers
    return integers.astype(np.int16 if integers.itemsize == 1 else np.int64) - 128
