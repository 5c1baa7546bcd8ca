"""Constants after a convolution of integers: an addition becomes its int32 bias, a multiplication its scales."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from intact.graph import integer, query
from intact.graph.builder import Builder
from intact.graph.pattern import Patterns, Var
from intact.graph.rewriter import WITHIN_ONE_STEP, LocalRule, Rule
from intact.rewrite import accumulator, affine, grid, linear
from intact.rewrite.accumulator import Accumulator, Tail
from intact.rewrite.affine import Affine
from intact.rewrite.operand import MICROSOFT, Operand, not_one_grid, produced, quantized, read, taken, written


class _AfterQLinearConv(LocalRule):
    """Takes what follows a QLinearConv into it; subclasses say what follows."""

    exactness = WITHIN_ONE_STEP

    def _conv(self, op: Patterns) -> Any:
        grids = [Var(name) for name in ("x", "xs", "xz", "w", "ws", "wz", "ms", "mz")]
        return op.QLinearConv(*grids, Var("b", optional=True), _name="conv")

    def _tail(self, acc: Accumulator, last: ir.Node) -> Tail | str:
        raise NotImplementedError(f"{type(self).__name__}._tail")

    def check(self, conv: ir.Node, last: ir.Node) -> str | None:
        acc = accumulator.accumulator(conv)
        if isinstance(acc, str):
            return acc
        tail = self._tail(acc, last)
        return tail if isinstance(tail, str) else accumulator.refusal(acc, tail)

    def rewrite(self, op: Builder, conv: ir.Node, last: ir.Node) -> Any:
        acc = accumulator.accumulator(conv)
        assert not isinstance(acc, str), f"the convolution was checked: {acc}"
        tail = self._tail(acc, last)
        assert not isinstance(tail, str), f"what follows was checked: {tail}"
        return accumulator.folded(op, acc, tail)


class FoldQLinearAdd(_AfterQLinearConv):
    """QLinearAdd(QLinearConv(x, w, b), c) = QLinearConv(x, w, b + c / (x_scale·w_scale)) within one step."""

    op_type: ClassVar[str] = "QLinearAdd"

    def pattern(self, op: Patterns, ms: Var, mz: Var) -> Any:
        grids = [Var(name) for name in ("k", "ks", "kz", "ys", "yz")]
        return op.node(self.op_type, self._conv(op), ms, mz, *grids, _domain=MICROSOFT, _name="last")

    def _tail(self, acc: Accumulator, last: ir.Node) -> Tail | str:
        conv_first = last.inputs[0] is acc.conv.outputs[0]
        k = taken(last, 3 if conv_first else 0)
        numbers = _constant_operand(k, acc)
        if isinstance(numbers, str):
            return numbers
        a, b, c = (taken(last, 0), taken(last, 3), produced(last, 6))
        doubt = not_one_grid(output=c) or (linear.added_in_float(c, k) if self.op_type == "QLinearAdd" else None)
        if doubt is not None:
            return doubt

        def run(levels: np.ndarray) -> np.ndarray:
            column = numbers[:, None]
            pair = (levels, column) if conv_first else (column, levels)
            compute = integer.qlinear_add if self.op_type == "QLinearAdd" else integer.qlinear_mul
            grids = [(np.float32(item.step), _zero_of(item)) for item in (a, b, c)]
            return compute(pair[0], *grids[0], pair[1], *grids[1], *grids[2])

        return self._tail_of(_real(numbers, k), c, run)

    def _tail_of(self, real: np.ndarray, output: Operand, run: Any) -> Tail | str:
        return Tail(Affine(np.ones(len(real)), real), output, run)


class FoldQLinearMul(FoldQLinearAdd):
    """QLinearMul(QLinearConv(x, w), c) = QLinearConv(x, w) with w_scale·c, within one step, for c > 0."""

    op_type: ClassVar[str] = "QLinearMul"

    def _tail_of(self, real: np.ndarray, output: Operand, run: Any) -> Tail | str:
        if not (real > 0).all():
            return f"a factor of {real.min():g} cannot go into a scale, which is positive"
        return Tail(Affine(real, np.zeros(len(real))), output, run)


class FoldRequantize(_AfterQLinearConv):
    """Q(DQ(QLinearConv(x, w))) = QLinearConv(x, w) with the scale and zero point of Q, within one step."""

    def pattern(self, op: Patterns) -> Any:
        return quantized(op, self._read_back(op), "last")

    def _read_back(self, op: Patterns) -> Any:
        """A DQ of the convolution: on its grid, or on another that took over a factor or a shift."""
        return op.DequantizeLinear(self._conv(op), Var("ds"), Var("dz", optional=True), _name="back")

    def _tail(self, acc: Accumulator, last: ir.Node) -> Tail | str:
        source, output = _source(acc), written(last)
        doubt = not_one_grid(source=source)
        if doubt is not None:
            return doubt
        return Tail(_as_read(acc, source), output, lambda q: grid.quantize(grid.dequantize(q, source), output))


class FoldArithmetic(FoldRequantize):
    """Q(DQ(QLinearConv(x, w, b)) ± c) = QLinearConv with c in its bias, within one step; · and / go into its scales."""

    def pattern(self, op: Patterns, c: Var) -> Any:  # type: ignore[override]
        return quantized(op, op.node(affine.ARITHMETIC, self._read_back(op), c), "last")

    def _tail(self, acc: Accumulator, last: ir.Node) -> Tail | str:
        node = last.inputs[0].producer() if last.inputs[0] is not None else None
        assert node is not None, "the pattern has a node before Q"
        rank, source, output = query.rank(acc.w.q) or 0, _source(acc), written(last)
        found = not_one_grid(source=source) or affine.of_node(node, acc.channels, rank)
        if isinstance(found, str):
            return found
        return Tail(
            _as_read(acc, source).then(found),
            output,
            lambda q: grid.quantize(affine.run(node, grid.dequantize(q, source), rank), output),
        )


class FoldNorm(FoldArithmetic):
    """Q(BN(DQ(QLinearConv(x, w, b)))) = QLinearConv with BN in its scales and bias, within one step."""

    def pattern(self, op: Patterns, gamma: Var, beta: Var, mean: Var, var: Var) -> Any:  # type: ignore[override]
        return quantized(op, op.BatchNormalization(self._read_back(op), gamma, beta, mean, var), "last")


RULES: tuple[Rule, ...] = (FoldQLinearAdd(), FoldQLinearMul(), FoldRequantize(), FoldArithmetic(), FoldNorm())


def _constant_operand(k: Operand, acc: Accumulator) -> np.ndarray | str:
    """The integers of a constant operand, one for each channel."""
    if k.step is None or not query.is_scalar(k.zero_point):
        return "the grid of the constant is computed, not constant"
    return affine.per_channel(k.q, query.constant(k.q), acc.channels, query.rank(acc.w.q) or 0)


def _real(numbers: np.ndarray, k: Operand) -> np.ndarray:
    assert k.step is not None, "grids are checked first"
    return (numbers.astype(np.int64) - k.zero) * float(np.float32(k.step))


def _zero_of(operand: Operand) -> np.ndarray:
    assert operand.dtype is not None, "grids are checked first"
    return np.asarray(operand.zero).astype(operand.dtype.numpy())


def _source(acc: Accumulator) -> Operand:
    """What the DQ after the convolution reads."""
    (back,) = query.consumers(acc.conv.outputs[0])
    return read(back)


def _as_read(acc: Accumulator, source: Operand) -> Affine:
    """What a DQ on another grid than the convolution's makes of its values; on the same grid it leaves them."""
    assert source.step is not None and acc.y.step is not None, "grids are checked first"
    factor, shift = source.step / acc.y.step, (acc.y.zero - source.zero) * source.step
    return Affine(np.full(acc.channels, factor), np.full(acc.channels, shift))
