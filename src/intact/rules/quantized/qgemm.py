"""Products of integers and a constant behind them as QGemm, which has an int32 bias; stacks of matrices are flattened.

The bias is part of the sum before it is rounded, so that a grid in between goes: `accumulator` proves where that moves
a result by one step at most.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import AnyOf, Patterns, Roots, Var
from intact.matching.rewriter import WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.rules.quantized import accumulator, affine, integer_layers, stacks, tail
from intact.rules.quantized.accumulator import Accumulator
from intact.rules.quantized.grid_relations import not_one_type
from intact.rules.quantized.operand import (
    MICROSOFT,
    Operand,
    dequantized,
    dq_operand,
    input_operand,
    output_operand,
    q_operand,
    quantized,
)
from intact.rules.quantized.stacks import Shape
from intact.rules.quantized.tail import Head, Tail
from intact.rules.quantized.target_rule import TargetRule
from intact.targets.spec import Forms

FAMILY = "gemm"


class _AfterQLinearMatMul(TargetRule):
    """Makes a QGemm of a QLinearMatMul and what follows; subclasses say what follows."""

    exactness = WITHIN_ONE_STEP
    creates = ((MICROSOFT, "QGemm"),)

    def __init__(self, worth_flattening: int | None = None) -> None:
        self.worth_flattening = worth_flattening

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.worth_flattening)

    def _product(self, op: Patterns) -> AnyOf:
        grids = [Var(name) for name in ("a", "as", "az", "b", "bs", "bz", "ms", "mz")]
        product = op.QLinearMatMul(*grids, _name="matmul")
        return op.any_of(product, op.Reshape(product, op.constant(Var("shape")), _name="reshape"))

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        raise NotImplementedError(f"{type(self).__name__}._tail")

    def check(self, matmul: ir.Node, reshape: ir.Node | None, last: ir.Node) -> str | None:
        a, b, middle = input_operand(matmul, 0), input_operand(matmul, 3, axis=-1), output_operand(matmul, 6)
        doubt = (
            not_one_type(input=a, intermediate=middle)
            or integer_layers.not_a_constant_matrix(b)
            or stacks.not_flat(a.q, b, _shape_behind(matmul, reshape, last), is_moved=reshape is not None)
            or self._not_worth_it(a.q, _shape_behind(matmul, reshape, last))
            or integer_layers.not_a_weight(a, b, -1)
        )
        folded = doubt or self._folded(matmul, reshape, last)
        return folded if isinstance(folded, str) else accumulator.refusal(*folded)

    def _not_worth_it(self, a: ir.Value, shape: Shape | None) -> str | None:
        if self.worth_flattening is None or shape is None or query.rank(a) == 2:
            return None
        count = math.prod(size for size in shape if size is not None)
        if None in shape or count >= self.worth_flattening:
            return None
        return f"QGemm takes matrices, and flattening a stack pays from {self.worth_flattening} results on, not {count}"

    def _folded(self, matmul: ir.Node, reshape: ir.Node | None, last: ir.Node) -> tuple[Accumulator, Tail] | str:
        """The sums of the product and what follows it; text says why these are not known."""
        acc, shape = accumulator.accumulator(matmul), _shape_behind(matmul, reshape, last)
        assert shape is not None, "shapes were checked"
        if isinstance(acc, str):
            return acc
        product = matmul if reshape is None else reshape
        found = self._tail(acc.head(product.outputs[0], len(shape)), last)
        return found if isinstance(found, str) else (acc, found)

    def rewrite(self, op: Builder, matmul: ir.Node, reshape: ir.Node | None, last: ir.Node) -> ir.Value:
        folded = self._folded(matmul, reshape, last)
        assert not isinstance(folded, str), f"the product and what follows were checked: {folded}"
        acc, found = folded
        scale, zero_point = accumulator.weight_grid(op, acc, found)
        weight = acc.w._replace(scale=scale, zero_point=zero_point)
        bias = accumulator.bias_with(acc, found).astype(np.int32)
        added = op.constant(bias, "bias") if found.affine.shift.any() else None
        return _qgemm(op, acc.x, weight, added, found.output.grid(op), _shape_behind(matmul, reshape, last))


class QLinearMatMulToQGemm(_AfterQLinearMatMul):
    """QLinearAdd(QLinearMatMul(a, b), c) = QGemm(a, b, round(c / (a_scale · b_scale))) for a constant c."""

    name = "qlinear_matmul_to_qgemm"

    def pattern(
        self, op: Patterns, ms: Var, mz: Var, k: Var, ks: Var, ys: Var, kz: Var | None = None, yz: Var | None = None
    ) -> Roots:
        return op.QLinearAdd(self._product(op), ms, mz, k, ks, kz, ys, yz, _domain=MICROSOFT, _name="last")

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        return tail.of_operator(head, last)


class FoldArithmeticIntoQGemm(_AfterQLinearMatMul):
    """Q(DQ(QLinearMatMul(a, b)) ± c) = QGemm(a, b, ± c / (a_scale·b_scale)) within one step; · and / scale b."""

    def pattern(self, op: Patterns, c: Var) -> Roots:
        real = op.DequantizeLinear(self._product(op), Var("ds"), Var("dz", optional=True))
        # A constant that is dequantized, too, makes a QLinearAdd first.
        return quantized(op, op.node(affine.ARITHMETIC, real, op.constant(c)), "last")

    def _tail(self, head: Head, last: ir.Node) -> Tail | str:
        return tail.of_arithmetic(head, last)


class MatMulAddToQGemm(LocalRule):
    """Q(DQ(a) · DQ(b) + c) = QGemm(a, b, round(c / (a_scale · b_scale))) for a constant c."""

    name = "matmul_add_to_qgemm"
    exactness = WITHIN_ONE_STEP
    creates = ((MICROSOFT, "QGemm"),)

    def pattern(self, op: Patterns, bias: Var) -> Roots:
        product = op.MatMul(dequantized(op, "a"), dequantized(op, "b"))
        return quantized(op, op.Add(product, bias), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> str | None:
        left, right, output = dq_operand(a), dq_operand(b), q_operand(y)
        return (
            integer_layers.not_a_constant_matrix(right)
            or stacks.not_flat(left.q, right, stacks.result_shape(left.q, right, y))
            or integer_layers.not_a_product(left, right, -1, output)
            or integer_layers.not_a_bias(bias, left, right, output.step, -1)
        )

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> ir.Value:
        left, right = dq_operand(a), dq_operand(b)
        added = integer_layers.bias_constant(op, bias, left, right, -1)
        shape = stacks.result_shape(left.q, right, y)
        return _qgemm(op, left, right, added, q_operand(y).grid(op), shape)


def _shape_behind(matmul: ir.Node, reshape: ir.Node | None, last: ir.Node) -> Shape | None:
    """The shape of what a constant behind a product gives: that of the product, unless it is reshaped in between."""
    if reshape is None:
        return stacks.result_shape(input_operand(matmul, 0).q, input_operand(matmul, 3, axis=-1), last)
    return stacks.sizes(last.outputs[0]) or stacks.sizes(reshape.outputs[0])


def _qgemm(
    op: Builder,
    a: Operand,
    b: Operand,
    bias: ir.Value | None,
    grid: tuple[ir.Value, ir.Value],
    shape: Shape | None,
) -> ir.Value:
    """QGemm of `a`, flattened to a matrix where it is a stack of them, in the shape of the result."""
    assert shape is not None, "shapes were checked"
    rows = a.q if query.rank(a.q) == 2 else stacks.rows(op, a.q, b)
    product = op.QGemm(rows, *a.grid(op), *b.triple(op), bias, *grid, _domain=MICROSOFT)
    return product if rows is a.q and len(shape) == 2 else stacks.in_shape(op, product, shape)
