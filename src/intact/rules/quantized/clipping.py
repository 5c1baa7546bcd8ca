"""Relu and Clip in front of a grid that already clips: the grid does their work."""

from __future__ import annotations

from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT
from intact.model import query
from intact.numbers import integer_types
from intact.rules.quantized.target_rule import TargetRule
from intact.targets.spec import Forms


class _Absorb(TargetRule):
    """The common part of the rules below: what stood before Q is gone."""

    exactness = EXACT

    def __init__(self, apart: frozenset[str] = frozenset()) -> None:
        self.apart = apart

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.requantizes_wrongly)

    def not_apart(self, x: ir.Value, quantize: ir.Node) -> str | None:
        """Refuse to put a grid right behind another one, in types that the target gets wrong."""
        dtype, before = quantize.outputs[0].dtype, x.producer()
        if dtype is None or dtype.name.lower() not in self.apart or before is None:
            return None
        is_on_grid = before.op_type == "DequantizeLinear" and not query.is_constant(before.inputs[0])
        return f"{query.describe(x)} is on a grid, and the target may requantize it wrongly" if is_on_grid else None

    def rewrite(self, op: Builder, x: ir.Value, quantize: ir.Node) -> ir.Value:
        return op.like(quantize, x, *quantize.inputs[1:])


class AbsorbRelu(_Absorb):
    """Q(Relu(x), s, z) = Q(x, s, z) where Q(0) is the least integer: the grid cuts negative values off itself."""

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var) -> Roots:
        return op.QuantizeLinear(op.Relu(x), s, z, _name="quantize")

    def check(self, x: ir.Value, s: ir.Value, z: ir.Value, quantize: ir.Node) -> str | None:
        return self.not_apart(x, quantize) or _does_not_clip(quantize, s, z, 0.0, None)


class AbsorbClip(_Absorb):
    """Q(Clip(x, a, b), s, z) = Q(x, s, z) where Q(a) is the least integer and Q(b) the greatest."""

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var, low: Var | None = None, high: Var | None = None) -> Roots:
        return op.QuantizeLinear(op.Clip(x, low, high), s, z, _name="quantize")

    def check(
        self, x: ir.Value, s: ir.Value, z: ir.Value, low: ir.Value | None, high: ir.Value | None, quantize: ir.Node
    ) -> str | None:
        ends = [None if end is None else query.scalar(end) for end in (low, high)]
        if any(value is not None and end is None for value, end in zip((low, high), ends, strict=True)):
            return "the limits of the Clip are computed, not constant"
        return self.not_apart(x, quantize) or _does_not_clip(quantize, s, z, *ends)


def _does_not_clip(
    quantize: ir.Node, scale: ir.Value, zero_point: ir.Value, low: float | None, high: float | None
) -> str | None:
    """Refuse a grid that lets values through which a clip to [low, high] would not.

    Quantization is monotonic, so it is enough that the ends of the clip fall on the ends of the grid.
    """
    steps, zeros = query.constant(scale), query.constant(zero_point)
    dtype = quantize.outputs[0].dtype or zero_point.dtype
    if steps is None or zeros is None or dtype is None:
        return "scale or zero point is computed, not constant"
    least, greatest = integer_types.limits(dtype.name.lower())
    zeros = zeros.astype(np.int64)
    for end, limit, name in ((low, least, "least"), (high, greatest, "greatest")):
        if end is None:
            continue
        level = np.rint(np.float32(end) / steps.astype(np.float32)) + zeros
        beyond = level > limit if name == "least" else level < limit
        if beyond.any():
            return f"{end} is level {int(level.reshape(-1)[0])} of the grid, whose {name} is {limit}"
    return None
