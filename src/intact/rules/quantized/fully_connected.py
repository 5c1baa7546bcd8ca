"""A product and its bias as one Gemm between Q/DQ nodes, which NPUs run as FullyConnected."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.rules.quantized import grid_relations, integer_layers, stacks
from intact.rules.quantized.grid_relations import not_one_grid, not_one_type
from intact.rules.quantized.operand import Operand, dequantized, dq_operand, q_operand, quantized

FAMILY = "gemm"


class MatMulToFullyConnected(LocalRule):
    """Q(DQ(Q(DQ(a) · DQ(b))) + c) = Q(Gemm(DQ(a), DQ(b), DQ(c'))): a product and its bias as one operator.

    The intermediate grid, where there is one, holds every product that can occur, so that it only rounded, and by less
    than a step of the output.
    """

    exactness = WITHIN_ONE_STEP
    creates = (("", "Gemm"),)

    def pattern(self, op: Patterns, bias: Var) -> Roots:
        product = op.MatMul(dequantized(op, "a"), dequantized(op, "b"))
        scale, zero_point = Var("m.scale"), Var("m.zero_point", optional=True)
        again = op.DequantizeLinear(quantized(op, product, "m"), scale, zero_point)
        return quantized(op, op.Add(op.any_of(again, product), bias), "y")

    def check(self, a: ir.Node, b: ir.Node, m: ir.Node | None, y: ir.Node, bias: ir.Value) -> str | None:
        left, right, output = dq_operand(a), dq_operand(b), q_operand(y)
        if query.rank(left.q) != 2:
            return f"Gemm takes matrices, and the input has rank {query.rank(left.q)}"
        return _not_connected(left, right, output) or self._not_added(left, right, m, output, bias)

    def _not_added(self, a: Operand, b: Operand, m: ir.Node | None, output: Operand, bias: ir.Value) -> str | None:
        if m is None:
            return integer_layers.not_a_bias(bias, a, b, output.step, -1)
        middle, producer = q_operand(m), bias.producer()
        if producer is None or producer.op_type != "DequantizeLinear":
            return "the bias is not behind a DequantizeLinear"
        doubt = not_one_type(output=output, intermediate=middle) or not_one_grid(intermediate=middle)
        return doubt or _folding_moves(a, b, dq_operand(producer), middle, output)

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> ir.Value:
        result = op.Gemm(a.outputs[0], b.outputs[0], _bias(op, dq_operand(a), dq_operand(b), bias))
        return op.QuantizeLinear(result, *y.inputs[1:], **y.attributes)


class StackToFullyConnected(LocalRule):
    """Q(DQ(a) · DQ(b) + c) = Reshape(Q(Gemm(DQ(Reshape(a)), DQ(b), DQ(c')))) for a stack a, each Reshape on its grid.

    Without a grid between product and sum, an NPU takes the product of a stack in float, and its weight as well.
    """

    exactness = WITHIN_ONE_STEP
    creates = (("", "Gemm"),)

    def pattern(self, op: Patterns, bias: Var) -> Roots:
        product = op.MatMul(dequantized(op, "a"), dequantized(op, "b"))
        return quantized(op, op.Add(product, bias), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> str | None:
        left, right, output = dq_operand(a), dq_operand(b), q_operand(y)
        if query.rank(left.q) == 2:
            return "the input is a matrix, which Gemm takes as it is"
        return (
            _not_connected(left, right, output)
            or grid_relations.unusable(left)
            or grid_relations.unusable(output)
            or stacks.not_flat(left.q, right, stacks.result_shape(left.q, right, y))
            or integer_layers.not_a_bias(bias, left, right, output.step, -1)
        )

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> ir.Value:
        left, right, output = dq_operand(a), dq_operand(b), q_operand(y)
        shape = stacks.result_shape(left.q, right, y)
        assert shape is not None, "shapes were checked"
        rows = op.QuantizeLinear(stacks.rows(op, a.outputs[0], right), *left.grid(op))
        result = op.Gemm(op.DequantizeLinear(rows, *left.grid(op)), b.outputs[0], _bias(op, left, right, bias))
        levels = op.QuantizeLinear(result, *output.grid(op))
        back = stacks.in_shape(op, op.DequantizeLinear(levels, *output.grid(op)), shape)
        return op.QuantizeLinear(back, *output.grid(op))


def _not_connected(a: Operand, b: Operand, output: Operand) -> str | None:
    """Refuse a product of integers and a bias that is not within a step of that of floats."""
    return integer_layers.not_a_constant_matrix(b) or integer_layers.not_a_product(a, b, -1, output)


def _bias(op: Builder, a: Operand, b: Operand, bias: ir.Value) -> ir.Value:
    """The bias as int32 on the grid of the accumulator."""
    steps = integer_layers.step(a, b)
    return integer_layers.dequantized_bias(op, integer_layers.known_levels(bias, steps, b, -1), steps)


def _constant_levels(added: Operand, steps: np.ndarray, b: Operand) -> np.ndarray | str:
    """A quantized constant in steps of the accumulator, one for each column."""
    real, columns = integer_layers.dequantized_constant(added), integer_layers.channel_count(b, -1)
    if real is None or columns is None:
        return "what is added is computed, not constant"
    return integer_layers.levels_of(real, steps, columns)


def _folding_moves(a: Operand, b: Operand, added: Operand, middle: Operand, output: Operand) -> str | None:
    """Refuse a constant that is added on the output's grid and may not join the accumulator instead."""
    steps = integer_layers.step(a, b)
    levels = _constant_levels(added, steps, b)
    if isinstance(levels, str):
        return levels
    s, t = middle.known_step, output.known_step
    if s / 2 + float((np.abs(np.rint(levels) - levels) * steps).max(initial=0.0)) >= t:
        return f"the intermediate scale {s:.6g} is not below twice the output scale {t:.6g}"
    overflow = integer_layers.overflow(a, b, -1, np.rint(levels).astype(np.int64))
    return overflow or integer_layers.saturates(a, b, -1, middle)
