"""A grid between a product and the Relu or Clip behind it, where the grid behind both does not do their work.

An NPU computes a product in integers only if its output has a grid. Rounding is monotonic and the grid is the same, so
that it makes no difference which of rounding and cutting off comes first.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, LocalRule
from intact.model import query


class _Split(LocalRule):
    """The common part of the rules below: the grid of the output in front of the clip, too."""

    exactness = EXACT

    def check(self, x: ir.Value, s: ir.Value, z: ir.Value) -> str | None:
        return _not_a_product(x) or _not_one_grid(s, z)

    def rewrite(self, op: Builder, x: ir.Value, s: ir.Value, z: ir.Value, quantize: ir.Node, clip: ir.Node) -> ir.Value:
        rounded = op.DequantizeLinear(op.like(quantize, x, s, z), s, z)
        return op.like(quantize, op.like(clip, rounded, *clip.inputs[1:]), s, z)


class SplitRelu(_Split):
    """Q(Relu(x), s, z) = Q(Relu(DQ(Q(x, s, z), s, z)), s, z)."""

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var) -> Roots:
        return op.QuantizeLinear(op.Relu(x, _name="clip"), s, z, _name="quantize")


class SplitClip(_Split):
    """Q(Clip(x, a, b), s, z) = Q(Clip(DQ(Q(x, s, z), s, z), a, b), s, z)."""

    def pattern(self, op: Patterns, x: Var, s: Var, z: Var, low: Var | None = None, high: Var | None = None) -> Roots:
        return op.QuantizeLinear(op.Clip(x, low, high, _name="clip"), s, z, _name="quantize")


def _not_a_product(x: ir.Value) -> str | None:
    """Refuse what is on a grid already, and what does not compute with integers anyway."""
    producer = x.producer()
    if producer is None or producer.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return f"{query.describe(x)} is no result of a computation in float"
    sources = (value.producer() for value in producer.inputs if value is not None)
    if not any(source is not None and source.op_type == "DequantizeLinear" for source in sources):
        return f"{producer.name!r} reads nothing that is quantized"
    return f"{query.describe(x)} has other readers" if len(x.uses()) > 1 else None


def _not_one_grid(s: ir.Value, z: ir.Value) -> str | None:
    if query.scalar(s) is None or query.scalar(z) is None:
        return "scale or zero point is computed, or differs by channel"
    return None
