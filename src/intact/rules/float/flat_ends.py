"""Operators that are flat beyond a point: what they read is cut off there, so that a grid need not hold the rest."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import query

# They write values of a range of their own; what others write is on a grid already, that of what they read.
_WRITING = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul")


class FlatEndRule(Rule):
    """The common part of the rules below: a Clip in front, which the quantizer behind it does away with."""

    exactness = EXACT
    creates = (("", "Clip"),)
    is_rare = True

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        before = x.producer()
        if before is None or before.domain or before.op_type not in _WRITING:
            return f"{query.describe(x)} is not computed by a layer or a sum"
        if query.only_consumer(x) is not root or x.is_graph_output():
            return f"{query.describe(x)} is read elsewhere"
        if x.dtype != ir.DataType.FLOAT:
            return f"{query.describe(x)} is not float32"
        return None


class CutHardSwish(FlatEndRule):
    """HardSwish(x) = HardSwish(max(x, −3)): it is 0 below −3."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.HardSwish(x, _name="root")

    def rewrite(self, op: Builder, x: ir.Value, root: ir.Node) -> ir.Value:
        return op.HardSwish(op.Clip(x, op.constant(np.array(-3, np.float32), "low")))


class CutHardSigmoid(FlatEndRule):
    """HardSigmoid(x, α, β) = HardSigmoid(Clip(x, −β/α, (1 − β)/α), α, β): it is 0 below, and 1 above."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.HardSigmoid(x, _name="root")

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        slope, offset = _line(root)
        if not (slope > 0 and 0 < offset < 1):
            return f"its slope {slope:g} and offset {offset:g} leave no ends on both sides of 0"
        return super().check(x, root)

    def rewrite(self, op: Builder, x: ir.Value, root: ir.Node) -> ir.Value:
        slope, offset = _line(root)
        ends = (op.constant(np.array(end / slope, np.float32), "end") for end in (-offset, 1 - offset))
        return op.like(root, op.Clip(x, *ends))


def _line(node: ir.Node) -> tuple[float, float]:
    return query.float_(node, "alpha", 0.2), query.float_(node, "beta", 0.5)
