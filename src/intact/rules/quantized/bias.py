"""Constants after a convolution of integers: an addition becomes its int32 bias, a multiplication its scales."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import WITHIN_ONE_STEP, LocalRule
from intact.rules.quantized import accumulator, affine, tail
from intact.rules.quantized.operand import MICROSOFT, quantized
from intact.rules.quantized.tail import Head, Tail


class _AfterQLinearConv(LocalRule):
    """Takes what follows a QLinearConv into it; subclasses say what follows."""

    exactness = WITHIN_ONE_STEP

    def _conv(self, op: Patterns) -> Output:
        grids = [Var(name) for name in ("x", "xs", "xz", "w", "ws", "wz", "ms", "mz")]
        return op.QLinearConv(*grids, Var("b", optional=True), _name="conv")

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        raise NotImplementedError(f"{type(self).__name__}._tail")

    def check(self, conv: ir.Node, last: ir.Node) -> str | None:
        acc = accumulator.accumulator(conv)
        if isinstance(acc, str):
            return acc
        found = self._tail(acc.head(), last)
        return found if isinstance(found, str) else accumulator.refusal(acc, found)

    def rewrite(self, op: Builder, conv: ir.Node, last: ir.Node) -> ir.Value:
        acc = accumulator.accumulator(conv)
        assert not isinstance(acc, str), f"the convolution was checked: {acc}"
        found = self._tail(acc.head(), last)
        assert not isinstance(found, str), f"what follows was checked: {found}"
        return accumulator.folded(op, acc, found)


class FoldQLinearAdd(_AfterQLinearConv):
    """QLinearAdd(QLinearConv(x, w, b), c) = QLinearConv(x, w, b + c / (x_scale·w_scale)) within one step."""

    op_type: ClassVar[str] = "QLinearAdd"

    def pattern(self, op: Patterns, ms: Var, mz: Var) -> Roots:
        grids = [Var(name) for name in ("k", "ks", "kz", "ys", "yz")]
        return op.node(self.op_type, self._conv(op), ms, mz, *grids, _domain=MICROSOFT, _name="last")

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        return tail.of_operator(head, last)


class FoldQLinearMul(FoldQLinearAdd):
    """QLinearMul(QLinearConv(x, w), c) = QLinearConv(x, w) with w_scale·c, within one step, for c > 0."""

    op_type: ClassVar[str] = "QLinearMul"


class FoldRequantize(_AfterQLinearConv):
    """Q(DQ(QLinearConv(x, w))) = QLinearConv(x, w) with the scale and zero point of Q, within one step."""

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, self._read_back(op), "last")

    def _read_back(self, op: Patterns) -> Output:
        """A DQ of the convolution: on its grid, or on another that took over a factor or a shift."""
        return op.DequantizeLinear(self._conv(op), Var("ds"), Var("dz", optional=True), _name="back")

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        return tail.of_requantize(head, last)


class FoldArithmetic(FoldRequantize):
    """Q(DQ(QLinearConv(x, w, b)) ± c) = QLinearConv with c in its bias, within one step; · and / go into its scales."""

    def pattern(self, op: Patterns, c: Var) -> Roots:  # type: ignore[override]
        return quantized(op, op.node(affine.ARITHMETIC, self._read_back(op), c), "last")

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        return tail.of_arithmetic(head, last)


class FoldNorm(FoldArithmetic):
    """Q(BN(DQ(QLinearConv(x, w, b)))) = QLinearConv with BN in its scales and bias, within one step."""

    def pattern(self, op: Patterns, gamma: Var, beta: Var, mean: Var, var: Var) -> Roots:  # type: ignore[override]
        return quantized(op, op.BatchNormalization(self._read_back(op), gamma, beta, mean, var), "last")
