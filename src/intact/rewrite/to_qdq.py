"""From QLinear operators to QDQ: an operator on integers becomes DQ → op → Q, the form that NPU providers take.

The reverse of `to_qlinear`, for every operator that has both forms: the kernel rounds an accumulator, DQ → op → Q
rounds a float32, so that a value close to the middle between two levels may fall on either.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from intact.graph import query
from intact.graph.builder import Builder
from intact.graph.pattern import Patterns, Var
from intact.graph.rewriter import BOUNDED, EXACT, WITHIN_ONE_STEP, LocalRule, Rule
from intact.rewrite import grid
from intact.rewrite.movement import MovementRule, computes
from intact.rewrite.operand import MICROSOFT, Operand, not_one_grid, produced, quantized, taken, written
from intact.rewrite.to_qlinear import softmax_of_one


class _FromQLinear(LocalRule):
    """A rule that takes one integer operator, whatever its inputs."""

    exactness = WITHIN_ONE_STEP
    op_type: ClassVar[str]
    domain: ClassVar[str] = MICROSOFT

    def pattern(self, op: Patterns) -> Any:
        return op.node(self.op_type, op.each(Var("inputs", optional=True)), _domain=self.domain, _name="node")


class ConvToQdq(_FromQLinear):
    """QLinearConv(x, w, b) = Q(Conv(DQ(x), DQ(w), DQ(b))), where b is on the grid x_scale · w_scale."""

    op_type, domain = "QLinearConv", ""

    def check(self, node: ir.Node) -> str | None:
        return _computed_scales(node, taken(node, 0), taken(node, 3)) if query.input_(node, 8) is not None else None

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        x, w = taken(node, 0), taken(node, 3, axis=0)
        bias = query.input_(node, 8)
        added = None if bias is None else _bias(op, bias, _step(x, w))
        return _quantize(op, op.Conv(_dequantize(op, x), _dequantize(op, w), added, **node.attributes), node, 6)


class MatMulToQdq(_FromQLinear):
    """QLinearMatMul(a, b) = Q(MatMul(DQ(a), DQ(b)))."""

    op_type, domain = "QLinearMatMul", ""

    def check(self, node: ir.Node) -> str | None:
        for operand, axis in ((taken(node, 0), -2), (taken(node, 3), -1)):
            count = query.rank(operand.scale)
            if count is not None and count > 1 and not query.is_scalar(operand.scale):
                return f"scales of rank {count} along axis {axis} have no form as DequantizeLinear"
        return None

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        left, right = _dequantize(op, taken(node, 0, axis=-2)), _dequantize(op, taken(node, 3, axis=-1))
        return _quantize(op, op.MatMul(left, right), node, 6)


class GemmToQdq(_FromQLinear):
    """QGemm(a, b, c) = Q(Gemm(DQ(a), DQ(b), DQ(c))), where c is on the grid alpha · a_scale · b_scale."""

    op_type = "QGemm"

    def check(self, node: ir.Node) -> str | None:
        return _computed_scales(node, taken(node, 0), taken(node, 3)) if query.input_(node, 6) is not None else None

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        a, b = taken(node, 0), taken(node, 3, axis=0 if query.int_(node, "transB", 0) else 1)
        bias = query.input_(node, 6)
        factor = np.float32(query.float_(node, "alpha", 1.0))
        added = None if bias is None else _bias(op, bias, factor * _step(a, b))
        product = op.Gemm(_dequantize(op, a), _dequantize(op, b), added, **node.attributes)
        return product if query.input_(node, 7) is None else _quantize(op, product, node, 7)


class MatMulToFloatToQdq(_FromQLinear):
    """MatMulIntegerToFloat(a, b, c) = MatMul(DQ(a), DQ(b)) + c, up to float rounding."""

    exactness = BOUNDED
    op_type = "MatMulIntegerToFloat"

    def check(self, node: ir.Node) -> str | None:
        rank = query.rank(node.inputs[3])
        if rank is not None and rank > 1 and not query.is_scalar(node.inputs[3]):
            return f"scales of rank {rank} have no form as DequantizeLinear"
        return None

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        a, b = (
            Operand(q, scale, zero_point, q.dtype, axis)
            for q, scale, zero_point, axis in (
                (node.inputs[0], node.inputs[2], query.input_(node, 4), -2),
                (node.inputs[1], node.inputs[3], query.input_(node, 5), -1),
            )
            if q is not None
        )
        product = op.MatMul(_dequantize(op, a), _dequantize(op, b))
        bias = query.input_(node, 6)
        return product if bias is None else op.Add(product, bias)


class _Elementwise(_FromQLinear):
    """Two operands and the grid of the output."""

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        operands = (_dequantize(op, taken(node, index)) for index in (0, 3))
        return _quantize(op, op.node(self.op_type.removeprefix("QLinear"), *operands), node, 6)


class AddToQdq(_Elementwise):
    """QLinearAdd(a, b) = Q(Add(DQ(a), DQ(b)))."""

    op_type = "QLinearAdd"


class MulToQdq(_Elementwise):
    """QLinearMul(a, b) = Q(Mul(DQ(a), DQ(b)))."""

    op_type = "QLinearMul"


class _Unary(_FromQLinear):
    """One operand and the grid of the output; `dropped` are attributes that the float operator does not have."""

    dropped: ClassVar[tuple[str, ...]] = ()

    def check(self, node: ir.Node) -> str | None:
        return "channels are last, and the float operator has them second" if _channels_last(node) else None

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        kept: dict[str, Any] = {name: item for name, item in node.attributes.items() if name not in self.dropped}
        result = op.node(self.op_type.removeprefix("QLinear"), _dequantize(op, taken(node, 0)), **kept)
        return _quantize(op, result, node, 3)


def _channels_last(node: ir.Node) -> bool:
    return bool(query.int_(node, "channels_last", 0))


class SigmoidToQdq(_Unary):
    """QLinearSigmoid(x) = Q(Sigmoid(DQ(x)))."""

    op_type = "QLinearSigmoid"


class LeakyReluToQdq(_Unary):
    """QLinearLeakyRelu(x) = Q(LeakyRelu(DQ(x)))."""

    op_type = "QLinearLeakyRelu"


class SoftmaxToQdq(_Unary):
    """QLinearSoftmax(x) = Q(Softmax(DQ(x))), where 1/y_scale is 256: the kernel is wrong for other scales."""

    op_type = "QLinearSoftmax"
    dropped = ("opset",)

    def check(self, node: ir.Node) -> str | None:
        step = produced(node, 3).step
        if step is None or 1.0 / np.float64(step) != 256.0:
            return f"the kernel computes something else than Softmax for y_scale {step}"
        return _flattens(node) or softmax_of_one(node)


def _flattens(node: ir.Node) -> str | None:
    """Why an operator with the meaning of opset 12 or older, which flattens to two dimensions, has no new form."""
    axis, rank = query.int_(node, "axis", -1), query.rank(node.inputs[0])
    if query.int_(node, "opset", 13) >= 13 or axis == -1 or (rank is not None and axis == rank - 1):
        return None
    return f"before opset 13 Softmax is over all dimensions from axis {axis} on"


class AveragePoolToQdq(_Unary):
    """QLinearAveragePool(x) = Q(AveragePool(DQ(x)))."""

    op_type = "QLinearAveragePool"
    dropped = ("channels_last",)


class GlobalAveragePoolToQdq(_Unary):
    """QLinearGlobalAveragePool(x) = Q(GlobalAveragePool(DQ(x)))."""

    op_type = "QLinearGlobalAveragePool"
    dropped = ("channels_last",)


class ReduceMeanToQdq(_FromQLinear):
    """QLinearReduceMean(x) = Q(ReduceMean(DQ(x)))."""

    op_type = "QLinearReduceMean"

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        axes = query.ints(node, "axes")
        given = op.constant(np.array(axes, np.int64), "axes") if axes else None
        keepdims = query.int_(node, "keepdims", 1)
        result = op.ReduceMean(_dequantize(op, taken(node, 0)), given, keepdims=keepdims)
        return _quantize(op, result, node, 3)


class ConcatToQdq(_FromQLinear):
    """QLinearConcat(a, b, …) = Q(Concat(DQ(a), DQ(b), …))."""

    exactness = EXACT
    op_type = "QLinearConcat"

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        operands = [_dequantize(op, taken(node, index)) for index in range(2, len(node.inputs), 3)]
        return _quantize(op, op.Concat(*operands, **node.attributes), node, 0)


class WhereToQdq(_FromQLinear):
    """QLinearWhere(c, a, b) = Q(Where(c, DQ(a), DQ(b)))."""

    exactness = EXACT
    op_type = "QLinearWhere"

    def rewrite(self, op: Builder, node: ir.Node) -> Any:
        operands = (_dequantize(op, taken(node, index)) for index in (1, 4))
        return _quantize(op, op.Where(node.inputs[0], *operands), node, 7)


class _Around(LocalRule):
    """An operator on integers gets a grid around it, the one that they were quantized with."""

    ops: ClassVar[tuple[str, ...]]

    def pattern(self, op: Patterns) -> Any:
        source = op.QuantizeLinear(Var("x"), Var("s"), Var("z", optional=True), _shared=True, _name="source")
        return op.node(self.ops, source, op.each(Var("rest", optional=True)), _name="node")

    def doubt(self, node: ir.Node) -> str | None:
        """Why the operator would not do the same to floats."""
        raise NotImplementedError

    def check(self, source: ir.Node, node: ir.Node) -> str | None:
        if len(node.outputs) > 1:
            return f"{node.op_type} has {len(node.outputs)} outputs"
        return self.doubt(node) or not_one_grid(input=written(source)) or grid.unusable(written(source))

    def rewrite(self, op: Builder, source: ir.Node, node: ir.Node) -> Any:
        attributes: dict[str, Any] = dict(node.attributes)
        real: ir.Value = op.node(node.op_type, _dequantize(op, written(source)), *node.inputs[1:], **attributes)
        real.dtype, real.shape = ir.DataType.FLOAT, node.outputs[0].shape
        return op.QuantizeLinear(real, *source.inputs[1:], **source.attributes)


class MoveToQdq(_Around):
    """move(Q(x, s, z)) = Q(move(DQ(Q(x, s, z), s, z)), s, z): what moves integers gets a grid around it."""

    exactness = EXACT
    ops = MovementRule.ops

    def doubt(self, node: ir.Node) -> str | None:
        return computes(node)


class InterpolateToQdq(_Around):
    """Resize(Q(x, s, z)) = Q(Resize(DQ(Q(x, s, z), s, z)), s, z): integers are interpolated and cut, floats rounded."""

    exactness = WITHIN_ONE_STEP
    ops = ("Resize",)

    def doubt(self, node: ir.Node) -> str | None:
        if query.string(node, "mode", "nearest") != "linear":
            return "only what lies between two integers is as near to them in float"
        fills = query.string(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        return "it fills in a value that is on no grid" if fills else None


class ConcatIntegersToQdq(LocalRule):
    """Concat(Q(x₁, s, z), Q(x₂, s, z), …) = Q(Concat(DQ(Q(x₁, s, z)), …), s, z)."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Any:
        part = op.QuantizeLinear(Var("x"), Var("s"), Var("z", optional=True), _shared=True, _name="parts")
        return op.Concat(op.each(part), _name="concat")

    def check(self, parts: tuple[ir.Node, ...]) -> str | None:
        first = written(parts[0])
        differing = (grid.different(first, written(part)) for part in parts[1:])
        doubt = next((reason for reason in differing if reason is not None), None)
        return doubt or not_one_grid(input=first) or grid.unusable(first)

    def rewrite(self, op: Builder, parts: tuple[ir.Node, ...], concat: ir.Node) -> Any:
        real: ir.Value = op.Concat(*(_dequantize(op, written(part)) for part in parts), **concat.attributes)
        real.dtype, real.shape = ir.DataType.FLOAT, concat.outputs[0].shape
        return op.QuantizeLinear(real, *parts[0].inputs[1:], **parts[0].attributes)


class ClipToQdq(LocalRule):
    """Clip(Q(x, s, z), a, b) = Q(Clip(x, (a - z) · s, (b - z) · s), s, z): quantizing keeps the order of values."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, low: Any = None, high: Any = None) -> Any:
        return op.Clip(quantized(op, x, "source"), op.constant(low), op.constant(high))

    def check(self, source: ir.Node) -> str | None:
        return not_one_grid(input=written(source)) or grid.unusable(written(source))

    def rewrite(self, op: Builder, x: ir.Value, source: ir.Node, low: ir.Value | None, high: ir.Value | None) -> Any:
        levels = written(source)
        ends = (None if end is None else op.constant(_real(end, levels), "limit") for end in (low, high))
        clipped: ir.Value = op.Clip(x, *ends)
        clipped.dtype, clipped.shape = ir.DataType.FLOAT, x.shape
        return op.QuantizeLinear(clipped, *source.inputs[1:], **source.attributes)


def _real(level: ir.Value, levels: Operand) -> np.ndarray:
    """The float that a constant level stands for."""
    found = query.constant(level)
    assert found is not None, "the pattern takes constants only"
    return grid.dequantize(found, levels).astype(np.float32)


RULES: tuple[Rule, ...] = (
    ConvToQdq(),
    MatMulToQdq(),
    GemmToQdq(),
    MatMulToFloatToQdq(),
    AddToQdq(),
    MulToQdq(),
    SigmoidToQdq(),
    LeakyReluToQdq(),
    SoftmaxToQdq(),
    AveragePoolToQdq(),
    GlobalAveragePoolToQdq(),
    ReduceMeanToQdq(),
    ConcatToQdq(),
    WhereToQdq(),
    MoveToQdq(),
    InterpolateToQdq(),
    ConcatIntegersToQdq(),
    ClipToQdq(),
)


def _computed_scales(node: ir.Node, *operands: Operand) -> str | None:
    """Why the grid of the bias is unknown."""
    if all(query.is_constant(operand.scale) for operand in operands):
        return None
    return f"the bias of {node.op_type} is in steps of scales that are computed, not constant"


def _step(x: Operand, w: Operand) -> np.ndarray:
    """The step of the accumulator: one, or one for each channel."""
    product = x.scales()[0] * w.scales()
    return np.asarray(product if product.size > 1 else product.reshape(()))


def _bias(op: Builder, bias: ir.Value, step: np.ndarray) -> ir.Value:
    """An int32 bias as the floats that it stands for; its zero point is 0 by default."""
    dequantized: ir.Value = op.DequantizeLinear(bias, op.constant(step, "bias_scale"), **_axis(step, -1))
    dequantized.dtype, dequantized.shape = ir.DataType.FLOAT, bias.shape
    return dequantized


def _dequantize(op: Builder, operand: Operand) -> ir.Value:
    dequantized: ir.Value = op.DequantizeLinear(
        operand.q, operand.scale, operand.zero_point, **_axis(query.constant(operand.scale), operand.axis)
    )
    dequantized.dtype, dequantized.shape = ir.DataType.FLOAT, operand.q.shape
    return dequantized


def _quantize(op: Builder, value: ir.Value, node: ir.Node, index: int) -> ir.Value:
    """Q of `value` onto the grid at inputs `index` of the integer operator."""
    output = produced(node, index)
    value.dtype, value.shape = ir.DataType.FLOAT, node.outputs[0].shape
    result: ir.Value = op.QuantizeLinear(value, output.scale, output.zero_point)
    return result


def _axis(scale: np.ndarray | None, axis: int) -> dict[str, int]:
    """The axis, where it means something: one scale is for the whole tensor, whatever its shape."""
    return {} if scale is None or scale.size == 1 else {"axis": axis}
