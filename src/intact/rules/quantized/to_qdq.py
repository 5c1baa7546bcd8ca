"""From QLinear operators to QDQ: an operator on integers becomes DQ → op → Q, the form that NPU providers take.

The reverse of `to_qlinear`, for every operator that has both forms: the kernel rounds an accumulator, DQ → op → Q
rounds a float32, so that a value close to the middle between two levels may fall on either.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.operand import MICROSOFT, Operand, as_scalar, described, input_operand, output_operand
from intact.rules.quantized.to_qlinear import counts_beyond, softmax_of_one


class _FromQLinear(LocalRule):
    """A rule that takes one integer operator, whatever its inputs."""

    exactness = WITHIN_ONE_STEP
    op_type: ClassVar[str]
    domain: ClassVar[str] = MICROSOFT

    def pattern(self, op: Patterns) -> Roots:
        return op.node(self.op_type, op.each(Var("inputs", optional=True)), _domain=self.domain, _name="node")


class ConvToQdq(_FromQLinear):
    """QLinearConv(x, w, b) = Q(Conv(DQ(x), DQ(w), DQ(b))), where b is on the grid x_scale · w_scale."""

    op_type, domain = "QLinearConv", ""

    def check(self, node: ir.Node) -> str | None:
        x, w = input_operand(node, 0), input_operand(node, 3, axis=0)
        doubt = None if query.input_(node, 8) is None else _computed_scales(node, x, w)
        return doubt or integer_layers.lost_in_float(x, w, 0, output_operand(node, 6))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        x, w = input_operand(node, 0), input_operand(node, 3, axis=0)
        bias = query.input_(node, 8)
        added = None if bias is None else _bias(op, bias, _step(x, w))
        return _quantize(op, op.Conv(dequantize(op, x), dequantize(op, w), added, **node.attributes), node, 6)


class MatMulToQdq(_FromQLinear):
    """QLinearMatMul(a, b) = Q(MatMul(DQ(a), DQ(b)))."""

    op_type, domain = "QLinearMatMul", ""

    def check(self, node: ir.Node) -> str | None:
        doubt = _not_along(node.inputs[1], -2) or _not_along(node.inputs[4], -1)
        return doubt or integer_layers.lost_in_float(
            input_operand(node, 0), input_operand(node, 3, axis=-1), -1, output_operand(node, 6)
        )

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        left, right = dequantize(op, input_operand(node, 0, axis=-2)), dequantize(op, input_operand(node, 3, axis=-1))
        return _quantize(op, op.MatMul(left, right), node, 6)


class GemmToQdq(_FromQLinear):
    """QGemm(a, b, c) = Q(Gemm(DQ(a), DQ(b), DQ(c))), where c is on the grid alpha · a_scale · b_scale."""

    op_type = "QGemm"

    def check(self, node: ir.Node) -> str | None:
        a, b, axis = (
            input_operand(node, 0),
            input_operand(node, 3, axis=integer_layers.gemm_axis(node)),
            integer_layers.gemm_axis(node),
        )
        doubt = None if query.input_(node, 6) is None else _computed_scales(node, a, b)
        return doubt or integer_layers.lost_in_float(a, b, axis, output_operand(node, 7))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        a, b = input_operand(node, 0), input_operand(node, 3, axis=0 if query.int_(node, "transB", 0) else 1)
        bias = query.input_(node, 6)
        factor = np.float32(query.float_(node, "alpha", 1.0))
        added = None if bias is None else _bias(op, bias, factor * _step(a, b))
        product = op.Gemm(dequantize(op, a), dequantize(op, b), added, **node.attributes)
        return product if query.input_(node, 7) is None else _quantize(op, product, node, 7)


class MatMulToFloatToQdq(_FromQLinear):
    """MatMulIntegerToFloat(a, b, c) = MatMul(DQ(a), DQ(b)) + c, up to float rounding."""

    exactness = BOUNDED
    op_type = "MatMulIntegerToFloat"

    def check(self, node: ir.Node) -> str | None:
        return _not_along(node.inputs[3], -1)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        a, b = (
            Operand(q, scale, zero_point, q.dtype, axis)
            for q, scale, zero_point, axis in (
                (node.inputs[0], node.inputs[2], query.input_(node, 4), -2),
                (node.inputs[1], node.inputs[3], query.input_(node, 5), -1),
            )
            if q is not None
        )
        product = op.MatMul(dequantize(op, a), dequantize(op, b))
        bias = query.input_(node, 6)
        return product if bias is None else op.Add(product, bias)


class _ElementwiseToQDQ(_FromQLinear):
    """Two operands and the grid of the output."""

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        operands = (dequantize(op, input_operand(node, index)) for index in (0, 3))
        return _quantize(op, op.node(self.op_type.removeprefix("QLinear"), *operands), node, 6)


class AddToQdq(_ElementwiseToQDQ):
    """QLinearAdd(a, b) = Q(Add(DQ(a), DQ(b)))."""

    op_type = "QLinearAdd"

    def check(self, node: ir.Node) -> str | None:
        return integer_layers.added_in_float(output_operand(node, 6), input_operand(node, 0), input_operand(node, 3))


class MulToQdq(_ElementwiseToQDQ):
    """QLinearMul(a, b) = Q(Mul(DQ(a), DQ(b)))."""

    op_type = "QLinearMul"

    def check(self, node: ir.Node) -> str | None:
        return integer_layers.beyond_int32(
            output_operand(node, 6),
            integer_layers.extent(input_operand(node, 0)) * integer_layers.extent(input_operand(node, 3)),
        )


class _UnaryToQDQ(_FromQLinear):
    """One operand and the grid of the output; `dropped` are attributes that the float operator does not have."""

    dropped: ClassVar[tuple[str, ...]] = ()

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return self._between(op, node, input_operand(node, 0), node.outputs[0].shape)

    def _between(self, op: Builder, node: ir.Node, x: Operand, shape: ir.Shape | None) -> ir.Value:
        """DQ → op → Q of `x`, with a result of this shape."""
        kept = {name: item for name, item in node.attributes.items() if name not in self.dropped}
        result = op.node(self.op_type.removeprefix("QLinear"), dequantize(op, x), _attrs=kept)
        integers = _quantize(op, result, node, 3)
        result.shape = shape
        return integers


class SigmoidToQdq(_UnaryToQDQ):
    """QLinearSigmoid(x) = Q(Sigmoid(DQ(x)))."""

    op_type = "QLinearSigmoid"


class LeakyReluToQdq(_UnaryToQDQ):
    """QLinearLeakyRelu(x) = Q(LeakyRelu(DQ(x)))."""

    op_type = "QLinearLeakyRelu"


class SoftmaxToQdq(_UnaryToQDQ):
    """QLinearSoftmax(x) = Q(Softmax(DQ(x))), where 1/y_scale, which the kernel rounds down, is at most 256.

    With the meaning of opset 12 or older it is over all dimensions from its axis on, which a Reshape makes one.
    """

    op_type = "QLinearSoftmax"
    dropped = ("opset",)

    def check(self, node: ir.Node) -> str | None:
        step = output_operand(node, 3).step
        # Rounded down by less than 1, times a share of at most 1: less than a step. Beyond 256 the kernel wraps around.
        if step is None or not 0 < 1.0 / np.float64(step) <= 256.0:
            return f"the kernel computes something else than Softmax for y_scale {step}"
        if _flattens(node) and query.static_shape(node.inputs[0]) is None:
            axis = query.int_(node, "axis", -1)
            return f"before opset 13 Softmax is over all dimensions from axis {axis} on, and their sizes are not known"
        return softmax_of_one(node)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        if not _flattens(node):
            return super().rewrite(op, node)
        x, shape = input_operand(node, 0), query.known_shape(node.inputs[0])
        axis = query.int_(node, "axis", -1)
        sizes = [math.prod(shape[:axis]), math.prod(shape[axis:])]
        rows = op.Reshape(x.q, op.constant(np.array(sizes, np.int64), "rows"))
        rows.type, rows.shape = x.q.type, ir.Shape(sizes)
        shares = op.Softmax(dequantize(op, x._replace(q=rows)), axis=-1)
        integers = _quantize(op, shares, node, 3)
        shares.shape, integers.type = ir.Shape(sizes), node.outputs[0].type
        return op.Reshape(integers, op.constant(np.array(shape, np.int64), "shape"))


def _flattens(node: ir.Node) -> bool:
    """True for an operator with the meaning of opset 12 or older, which makes several dimensions one."""
    axis, rank = query.int_(node, "axis", -1), query.rank(node.inputs[0])
    return query.int_(node, "opset", 13) < 13 and axis != -1 and axis + 1 != rank


class _Pool(_UnaryToQDQ):
    """Channels that are last move to where the float operator has them, and back."""

    dropped = ("channels_last",)

    def check(self, node: ir.Node) -> str | None:
        if query.int_(node, "channels_last", 0) and query.rank(node.inputs[0]) is None:
            return "channels are last in a tensor of unknown rank"
        return counts_beyond(node)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        x, rank = input_operand(node, 0), query.rank(node.inputs[0])
        if not query.int_(node, "channels_last", 0) or rank is None:
            return super().rewrite(op, node)
        first = op.Transpose(x.q, perm=[0, rank - 1, *range(1, rank - 1)])
        first.type = x.q.type
        pooled = self._between(op, node, x._replace(q=first), None)
        pooled.type = node.outputs[0].type
        return op.Transpose(pooled, perm=[0, *range(2, rank), 1])


class AveragePoolToQdq(_Pool):
    """QLinearAveragePool(x) = Q(AveragePool(DQ(x)))."""

    op_type = "QLinearAveragePool"

    def check(self, node: ir.Node) -> str | None:
        return super().check(node) or integer_layers.beyond_int32(
            output_operand(node, 3), integer_layers.extent(input_operand(node, 0))
        )


class GlobalAveragePoolToQdq(_Pool):
    """QLinearGlobalAveragePool(x) = Q(GlobalAveragePool(DQ(x)))."""

    op_type = "QLinearGlobalAveragePool"

    def check(self, node: ir.Node) -> str | None:
        return super().check(node) or integer_layers.added_in_float(output_operand(node, 3), input_operand(node, 0))


class ReduceMeanToQdq(_FromQLinear):
    """QLinearReduceMean(x) = Q(ReduceMean(DQ(x)))."""

    op_type = "QLinearReduceMean"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        axes = query.ints(node, "axes")
        given = op.constant(np.array(axes, np.int64), "axes") if axes else None
        keepdims = query.int_(node, "keepdims", 1)
        result = op.ReduceMean(dequantize(op, input_operand(node, 0)), given, keepdims=keepdims)
        return _quantize(op, result, node, 3)


class ConcatToQdq(_FromQLinear):
    """QLinearConcat(a, b, …) = Q(Concat(DQ(a), DQ(b), …))."""

    exactness = EXACT
    op_type = "QLinearConcat"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        operands = [dequantize(op, input_operand(node, index)) for index in range(2, len(node.inputs), 3)]
        return _quantize(op, op.Concat(*operands, **node.attributes), node, 0)


class WhereToQdq(_FromQLinear):
    """QLinearWhere(c, a, b) = Q(Where(c, DQ(a), DQ(b)))."""

    exactness = EXACT
    op_type = "QLinearWhere"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        operands = (dequantize(op, input_operand(node, index)) for index in (1, 4))
        return _quantize(op, op.Where(node.inputs[0], *operands), node, 7)


def _computed_scales(node: ir.Node, *operands: Operand) -> str | None:
    """Refuse a bias whose grid is unknown."""
    if all(query.is_constant(operand.scale) for operand in operands):
        return None
    return f"the bias of {node.op_type} is in steps of scales that are computed, not constant"


def _step(x: Operand, w: Operand) -> np.ndarray:
    """The step of the accumulator: one, or one for each channel where scales or zero points of the weight are so.

    A compiler takes a weight for one with a grid for each channel as soon as either has several, and reads the bias so.
    """
    product = x.scales()[0] * w.scales()
    count = max(product.size, w.zeros().size)
    return np.asarray(np.broadcast_to(product, count).copy() if count > 1 else product.reshape(()))


def _bias(op: Builder, bias: ir.Value, step: np.ndarray) -> ir.Value:
    """An int32 bias as the floats that it stands for; its zero point is 0 by default."""
    real = op.DequantizeLinear(bias, op.constant(step, "bias_scale"), **_axis(step, -1))
    return described(real, ir.DataType.FLOAT, bias.shape)


def _not_along(scale: ir.Value | None, axis: int) -> str | None:
    """Refuse scales that are not one, a vector, or constants along one axis as a matrix has them."""
    rank, array = query.rank(scale), query.constant(scale)
    if rank is None or rank < 2 or (array is not None and array.size in (1, array.shape[axis])):
        return None
    return f"scales of rank {rank} along axis {axis} have no form as DequantizeLinear"


def dequantize(op: Builder, operand: Operand) -> ir.Value:
    """The floats that integers on a grid stand for."""
    scale, zero_point = _alike(op, operand)
    real = op.DequantizeLinear(operand.q, scale, zero_point, **_axis(query.constant(scale), operand.axis))
    return described(real, ir.DataType.FLOAT, operand.q.shape)


def _alike(op: Builder, operand: Operand) -> tuple[ir.Value | None, ir.Value | None]:
    """Scale and zero point in one shape, which DequantizeLinear wants and integer kernels do not."""
    scale, zeros = query.constant(operand.scale), query.constant(operand.zero_point)
    if scale is None or zeros is None or (scale.size == zeros.size and scale.ndim < 2):
        return _scalar(op, operand.scale, "scale"), _scalar(op, operand.zero_point, "zero_point")
    count = max(scale.size, zeros.size)
    scales, points = (np.ascontiguousarray(np.broadcast_to(a.reshape(-1), count)) for a in (scale, zeros))
    return op.constant(scales, "scale"), op.constant(points, "zero_point")


def _scalar(op: Builder, value: ir.Value | None, hint: str) -> ir.Value | None:
    return None if value is None else as_scalar(op, value, hint)


def _quantize(op: Builder, value: ir.Value, node: ir.Node, index: int) -> ir.Value:
    """Q of `value` onto the grid at inputs `index` of the integer operator."""
    output = output_operand(node, index)
    value.dtype, value.shape = ir.DataType.FLOAT, node.outputs[0].shape
    scale, zero_point = _scalar(op, output.scale, "scale"), _scalar(op, output.zero_point, "zero_point")
    return op.QuantizeLinear(value, scale, zero_point)


def _axis(scale: np.ndarray | None, axis: int) -> dict[str, int]:
    """The axis, where it means something: one scale is for the whole tensor, whatever its shape."""
    return {} if scale is None or scale.size == 1 else {"axis": axis}
