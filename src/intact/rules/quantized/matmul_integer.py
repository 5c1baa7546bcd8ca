"""Products of integers without a grid for the result: MatMulIntegerToFloat, and MatMulInteger with its scale apart.

Which of these a product becomes is for the target's table to say: it lists the operators that the target has, and
the rules in the order in which they are tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, WITHIN_ONE_STEP, LocalRule, Rule
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import (
    INT8,
    MICROSOFT,
    UINT8,
    dequantized,
    dq_operand,
    input_operand,
    output_operand,
    type_name,
)
from intact.rules.quantized.product import product

FAMILY = "gemm"


class MatMulToFloat(Rule):
    """DQ(a) · DQ(b) = MatMulIntegerToFloat(a, b), up to float rounding."""

    exactness = BOUNDED
    creates = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def pattern(self, op: Patterns) -> Roots:
        return op.MatMul(dequantized(op, "a"), dequantized(op, "b"), _name="matmul")

    def check(self, a: ir.Node, b: ir.Node, matmul: ir.Node) -> str | None:
        if _goes_to_a_grid(matmul.outputs[0]):
            return "its output goes to a grid: the product is requantized, not turned to float"
        left, right = dq_operand(a), dq_operand(b)
        return integer_layers.not_a_matrix(right) or integer_layers.not_a_product(left, right, -1)

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node) -> ir.Value:
        left, right = dq_operand(a), dq_operand(b)
        (a_scale, a_zero), (b_scale, b_zero) = left.grid(op), right.grid(op)
        return op.MatMulIntegerToFloat(left.q, right.q, a_scale, b_scale, a_zero, b_zero, _domain=MICROSOFT)


class MatMulIntegerToFloat(LocalRule):
    """float(MatMulInteger(a, b)) · (a_scale · b_scale) = MatMulIntegerToFloat(a, b), rounded at the same places."""

    exactness = EXACT
    creates = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def pattern(self, op: Patterns, a: Var, b: Var, az: Var | None = None, bz: Var | None = None) -> Roots:
        sums = op.Cast(op.MatMulInteger(a, b, az, bz, _name="matmul"), _attrs={"to": int(ir.DataType.FLOAT)})
        both = op.Mul(Var("a_scale"), Var("b_scale"), _shared=True)
        return op.Mul(sums, op.any_of(both, Var("b_scale")))

    def check(self, matmul: ir.Node, a_scale: ir.Value | None, b_scale: ir.Value) -> str | None:
        found = product(matmul)
        if (found.x.dtype, found.w.dtype) not in ((UINT8, UINT8), (UINT8, INT8), (INT8, INT8)):
            return f"no kernel multiplies {type_name(found.x.dtype)} by {type_name(found.w.dtype)} into floats"
        if not (found.x.zero_point is None or _count(found.x.zero_point) == 1):
            return f"the activations have zero points of shape {_shape(found.x.zero_point)}, not one"
        one_or_each = {1, integer_layers.channel_count(found.w, -1) if query.rank(found.w.q) == 2 else 1} - {None}
        if not (found.w.zero_point is None or _count(found.w.zero_point) in one_or_each):
            return f"zero points of shape {_shape(found.w.zero_point)} are not one, nor one for each column of a matrix"
        scales = _in_order(a_scale, b_scale)
        if scales is None or _count(scales[1]) not in one_or_each:
            return f"scales of shape {_shape(b_scale)} are not one, nor one for each column of a matrix"
        return self._adds_dimensions(matmul, [scale for scale in scales if scale is not None])

    @staticmethod
    def _adds_dimensions(matmul: ir.Node, scales: Sequence[ir.Value]) -> str | None:
        most, rank = max(query.rank(scale) or 0 for scale in scales), query.rank(matmul.outputs[0])
        if most <= 1 or (rank is not None and most <= rank):
            return None
        return f"scales with {most} dimensions may add some to the product"

    def rewrite(self, op: Builder, matmul: ir.Node, a_scale: ir.Value | None, b_scale: ir.Value) -> ir.Value:
        scales = _in_order(a_scale, b_scale)
        assert scales is not None, "the scales were checked"
        first = op.constant(np.array(1, np.float32), "one") if scales[0] is None else _vector(op, scales[0])
        (a, b), zeros = matmul.inputs[:2], (query.input_(matmul, 2), query.input_(matmul, 3))
        return op.MatMulIntegerToFloat(a, b, first, _vector(op, scales[1]), *zeros, _domain=MICROSOFT)


class AddToMatMulToFloat(LocalRule):
    """MatMulIntegerToFloat(a, b) + c = MatMulIntegerToFloat(a, b, c), up to float rounding, for a constant vector c."""

    exactness = BOUNDED
    creates = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def pattern(self, op: Patterns, c: Var) -> Roots:
        inputs = [Var(f"matmul.{index}") for index in range(6)]
        product = op.MatMulIntegerToFloat(*inputs, _domain=MICROSOFT, _name="matmul")
        return op.Add(product, op.constant(c), _name="add")

    def check(self, c: ir.Value, matmul: ir.Node, add: ir.Node) -> str | None:
        bias, weight = query.known_constant(c), query.static_shape(matmul.inputs[1])
        if bias.dtype != np.float32 or weight is None or bias.shape[-1:] != weight[-1:] or bias.size != weight[-1]:
            return f"the constant has shape {list(bias.shape)}, not one float for each column"
        product, result = query.rank(matmul.outputs[0]), query.rank(add.outputs[0])
        return None if bias.ndim == 1 or product == result else "the constant adds dimensions"

    def rewrite(self, op: Builder, c: ir.Value, matmul: ir.Node) -> ir.Value:
        bias = query.known_constant(c)
        vector = c if bias.ndim == 1 else op.constant(bias.reshape(-1), "bias")
        return op.MatMulIntegerToFloat(*matmul.inputs[:6], vector, _domain=MICROSOFT)


class QLinearMatMulToInteger(LocalRule):
    """QLinearMatMul(a, b) = Q(float(MatMulInteger(a, b)) · a_scale · b_scale)."""

    name = "qlinear_matmul_to_integer"
    exactness = WITHIN_ONE_STEP
    creates = (("", "MatMulInteger"),)

    def pattern(self, op: Patterns) -> Roots:
        return op.QLinearMatMul(*[Var(f"matmul.{index}") for index in range(8)], _name="matmul")

    def check(self, matmul: ir.Node) -> str | None:
        a, b, output = input_operand(matmul, 0), input_operand(matmul, 3, axis=-1), output_operand(matmul, 6)
        constant = query.is_constant(b.scale)
        return not_one_grid(input=a, output=output) or (None if constant else "the grid of the weight is computed")

    def rewrite(self, op: Builder, matmul: ir.Node) -> ir.Value:
        a, b = input_operand(matmul, 0), input_operand(matmul, 3, axis=-1)
        accumulator = op.MatMulInteger(a.q, b.q, a.zero_point, b.zero_point)
        step = op.constant(integer_layers.like(b.scale, integer_layers.step(a, b)), "step")
        real = op.Mul(op.Cast(accumulator, to=int(ir.DataType.FLOAT)), step)
        return op.QuantizeLinear(real, *matmul.inputs[6:8])


def _goes_to_a_grid(value: ir.Value) -> bool:
    """True if a product is quantized, at once or after the addition of a constant."""
    user = query.only_consumer(value)
    if user is not None and user.op_type == "Add" and any(query.is_constant(item) for item in user.inputs):
        user = query.only_consumer(user.outputs[0])
    return user is not None and user.op_type == "QuantizeLinear"


def _in_order(first: ir.Value | None, second: ir.Value) -> tuple[ir.Value | None, ir.Value] | None:
    """Scales of the activations, a single number if any, and of the weight: a product of both has no order."""
    if first is None or _count(first) == 1:
        return first, second
    return (second, first) if _count(second) == 1 else None


def _count(value: ir.Value) -> int | None:
    """Count the numbers that a vector or a single number holds, or a constant that broadcasts like one."""
    shape = query.static_shape(value)
    if shape is None or (len(shape) > 1 and not query.is_constant(value)):
        return None
    count = math.prod(shape)
    return count if not shape or shape[-1] == count else None


def _shape(value: ir.Value) -> list[int] | str:
    shape = query.static_shape(value)
    return "that is not known" if shape is None else list(shape)


def _vector(op: Builder, value: ir.Value) -> ir.Value:
    """A scale as kernels want it: a constant of more dimensions has one."""
    array = query.constant(value) if (query.rank(value) or 0) > 1 else None
    return value if array is None else op.constant(array.reshape(-1), "scale")
