"""Matrix products as the integer GEMM that a target has: QGemm, MatMulIntegerToFloat, MatMulInteger, FullyConnected.

Which of these a product becomes is for the target's table to say: it lists the operators that the target has, and
the rules in the order in which they are tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intact.graph import query
from intact.graph.builder import Builder
from intact.graph.pattern import Patterns, Var
from intact.graph.rewriter import BOUNDED, EXACT, WITHIN_ONE_STEP, LocalRule, Rule
from intact.rewrite import linear
from intact.rewrite.operand import (
    MICROSOFT,
    Operand,
    dequantized,
    not_one_grid,
    not_one_type,
    produced,
    quantized,
    read,
    taken,
    written,
)


class FoldGemmFactors(LocalRule):
    """alpha · DQ(a) · DQ(b, s) + beta · c = DQ(a) · DQ(b, alpha · s) + DQ(c'), up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, bias: Any = None) -> Any:
        return op.Gemm(dequantized(op, "a"), dequantized(op, "b"), bias, _name="gemm")

    def check(self, a: ir.Node, b: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> str | None:
        alpha, beta = _factors(gemm)
        if alpha == 1.0 and (beta == 1.0 or bias is None):
            return "alpha and beta are 1 already"
        if not 0 < alpha < np.inf:
            return f"alpha is {alpha}, and a scale has to be positive"
        left, right = read(a), read(b)
        doubt = not_one_grid(input=left) or linear.not_a_weight(left, right, linear.gemm_axis(gemm))
        levels = None if doubt or bias is None else self._levels(left, right, bias, gemm)
        return levels if isinstance(levels, str) else doubt

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> Any:
        left, right = read(a), read(b)
        scale = op.constant(_like(right.scale, self._scales(right, gemm)), "scale")
        weight = op.DequantizeLinear(right.q, scale, right.zero_point, **b.attributes)
        added = None
        if bias is not None:
            levels = self._levels(left, right, bias, gemm)
            assert not isinstance(levels, str), "the bias was checked"
            added = _int32_bias(op, levels, left.scales()[0] * self._scales(right, gemm))
        kept = {name: gemm.attributes[name] for name in ("transA", "transB") if name in gemm.attributes}
        return op.Gemm(a.outputs[0], weight, added, **kept)

    @staticmethod
    def _scales(b: Operand, gemm: ir.Node) -> np.ndarray:
        return np.asarray(np.float32(_factors(gemm)[0]) * b.scales())

    def _levels(self, a: Operand, b: Operand, bias: ir.Value, gemm: ir.Node) -> np.ndarray | str:
        """beta · c in steps of the new accumulator."""
        beta, channels = _factors(gemm)[1], linear.channel_count(b, linear.gemm_axis(gemm))
        assert channels is not None, "the weight was checked"
        steps = (a.scales()[0] * self._scales(b, gemm)).astype(np.float64)
        return linear.bias_levels(bias, steps / beta, channels) if beta else np.zeros(channels)


class FoldGemmTranspose(LocalRule):
    """Gemm(DQ(a), b, transA=1) = Gemm(DQ(Transpose(a)), b): integers are transposed instead of floats."""

    exactness = EXACT

    def pattern(self, op: Patterns, b: Var, bias: Any = None) -> Any:
        return op.Gemm(dequantized(op, "a"), b, bias, _attrs={"transA": 1}, _name="gemm")

    def check(self, a: ir.Node) -> str | None:
        return not_one_grid(input=read(a))

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Value, bias: ir.Value | None, gemm: ir.Node) -> Any:
        turned = op.Transpose(a.inputs[0], perm=[1, 0])
        kept = {name: item for name, item in gemm.attributes.items() if name != "transA"}
        return op.Gemm(op.DequantizeLinear(turned, *a.inputs[1:]), b, bias, **kept)


class QLinearMatMulToQGemm(LocalRule):
    """QLinearAdd(QLinearMatMul(a, b), c) = QGemm(a, b, round(c / (a_scale · b_scale))) for a constant c.

    The intermediate grid holds every product that can occur, so that it only rounded, and by less than a step of
    the output.
    """

    name = "qlinear_matmul_to_qgemm"
    exactness = WITHIN_ONE_STEP
    creates = ((MICROSOFT, "QGemm"),)

    def pattern(self, op: Patterns, c: Var, cs: Var, ys: Var, cz: Any = None, yz: Any = None) -> Any:
        inputs = [Var(f"matmul.{index}") for index in range(6)]
        scale, zero_point = Var("matmul.scale"), Var("matmul.zero_point")
        product = op.QLinearMatMul(*inputs, scale, zero_point, _name="matmul")
        moved = op.any_of(product, op.Reshape(product, op.constant(Var("shape")), _name="reshape"))
        return op.QLinearAdd(moved, scale, zero_point, c, cs, cz, ys, yz, _domain=MICROSOFT, _name="add")

    def check(
        self, c: ir.Value, cs: ir.Value, cz: ir.Value | None, matmul: ir.Node, add: ir.Node, reshape: ir.Node | None
    ) -> str | None:
        a, b, middle, output = taken(matmul, 0), taken(matmul, 3, axis=-1), produced(matmul, 6), produced(add, 6)
        added = Operand(c, cs, cz, cz.dtype if cz is not None else c.dtype)
        return (
            not_one_type(input=a, intermediate=middle, output=output)
            or not_one_grid(input=a, intermediate=middle, output=output, added=added)
            or _not_a_constant_matrix(b)
            or _not_flat(a.q, b, add.outputs[0], reshape is not None)
            or linear.not_a_weight(a, b, -1)
            or _folding_moves(a, b, added, middle, output)
        )

    def rewrite(
        self, op: Builder, c: ir.Value, cs: ir.Value, cz: ir.Value | None, matmul: ir.Node, add: ir.Node
    ) -> Any:
        a, b = taken(matmul, 0), taken(matmul, 3, axis=-1)
        added = Operand(c, cs, cz, cz.dtype if cz is not None else c.dtype)
        levels = _constant_levels(added, linear.step(a, b), b)
        assert not isinstance(levels, str), "the constant was checked"
        bias = op.constant(np.rint(levels).astype(np.int32), "bias")
        shape = _result_shape(a.q, b, add.outputs[0], False)
        return _qgemm(op, a, b, bias, produced(add, 6).grid(op), shape)


class MatMulAddToQGemm(LocalRule):
    """Q(DQ(a) · DQ(b) + c) = QGemm(a, b, round(c / (a_scale · b_scale))) for a constant c."""

    name = "matmul_add_to_qgemm"
    exactness = WITHIN_ONE_STEP
    creates = ((MICROSOFT, "QGemm"),)

    def pattern(self, op: Patterns, bias: Var) -> Any:
        product = op.MatMul(dequantized(op, "a"), dequantized(op, "b"))
        return quantized(op, op.Add(product, bias), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> str | None:
        left, right, output = read(a), read(b), written(y)
        return (
            not_one_type(input=left, output=output)
            or not_one_grid(input=left, output=output)
            or _not_a_constant_matrix(right)
            or _not_flat(left.q, right, y.outputs[0])
            or linear.not_a_weight(left, right, -1)
            or linear.lost_in_float(left, right, -1, output)
            or linear.not_a_bias(bias, left, right, output.step, -1)
        )

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> Any:
        left, right = read(a), read(b)
        added = linear.bias_constant(op, bias, left, right, -1)
        shape = _result_shape(left.q, right, y.outputs[0], False)
        return _qgemm(op, left, right, added, written(y).grid(op), shape)


class MatMulToFloat(Rule):
    """DQ(a) · DQ(b) = MatMulIntegerToFloat(a, b), up to float rounding."""

    exactness = BOUNDED
    creates = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def pattern(self, op: Patterns) -> Any:
        return op.MatMul(dequantized(op, "a"), dequantized(op, "b"), _name="matmul")

    def check(self, a: ir.Node, b: ir.Node, matmul: ir.Node) -> str | None:
        if _goes_to_a_grid(matmul.outputs[0]):
            return "its output goes to a grid: the product is requantized, not turned to float"
        left, right = read(a), read(b)
        return (
            not_one_type(input=left)
            or not_one_grid(input=left)
            or linear.not_a_matrix(right)
            or linear.not_a_weight(left, right, -1)
        )

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node) -> Any:
        left, right = read(a), read(b)
        (a_scale, a_zero), (b_scale, b_zero) = left.grid(op), right.grid(op)
        return op.MatMulIntegerToFloat(left.q, right.q, a_scale, b_scale, a_zero, b_zero, _domain=MICROSOFT)


class AddToMatMulToFloat(LocalRule):
    """MatMulIntegerToFloat(a, b) + c = MatMulIntegerToFloat(a, b, c), up to float rounding, for a constant vector c."""

    exactness = BOUNDED
    creates = ((MICROSOFT, "MatMulIntegerToFloat"),)

    def pattern(self, op: Patterns, c: Var) -> Any:
        inputs = [Var(f"matmul.{index}") for index in range(6)]
        product = op.MatMulIntegerToFloat(*inputs, _domain=MICROSOFT, _name="matmul")
        return op.Add(product, op.constant(c), _name="add")

    def check(self, c: ir.Value, matmul: ir.Node, add: ir.Node) -> str | None:
        bias, weight = query.constant(c), query.static_shape(matmul.inputs[1])
        assert bias is not None, "the pattern takes constants only"
        if bias.dtype != np.float32 or weight is None or bias.shape[-1:] != weight[-1:] or bias.size != weight[-1]:
            return f"the constant has shape {list(bias.shape)}, not one float for each column"
        product, result = query.rank(matmul.outputs[0]), query.rank(add.outputs[0])
        return None if bias.ndim == 1 or product == result else "the constant adds dimensions"

    def rewrite(self, op: Builder, c: ir.Value, matmul: ir.Node) -> Any:
        bias = query.constant(c)
        assert bias is not None, "the pattern takes constants only"
        vector = c if bias.ndim == 1 else op.constant(bias.reshape(-1), "bias")
        return op.MatMulIntegerToFloat(*matmul.inputs[:6], vector, _domain=MICROSOFT)


class QLinearMatMulToInteger(LocalRule):
    """QLinearMatMul(a, b) = Q(float(MatMulInteger(a, b)) · a_scale · b_scale)."""

    name = "qlinear_matmul_to_integer"
    exactness = WITHIN_ONE_STEP
    creates = (("", "MatMulInteger"),)

    def pattern(self, op: Patterns) -> Any:
        return op.QLinearMatMul(*[Var(f"matmul.{index}") for index in range(8)], _name="matmul")

    def check(self, matmul: ir.Node) -> str | None:
        a, b, output = taken(matmul, 0), taken(matmul, 3, axis=-1), produced(matmul, 6)
        constant = query.is_constant(b.scale)
        return not_one_grid(input=a, output=output) or (None if constant else "the grid of the weight is computed")

    def rewrite(self, op: Builder, matmul: ir.Node) -> Any:
        a, b = taken(matmul, 0), taken(matmul, 3, axis=-1)
        accumulator = op.MatMulInteger(a.q, b.q, a.zero_point, b.zero_point)
        step = op.constant(_like(b.scale, linear.step(a, b)), "step")
        real = op.Mul(op.Cast(accumulator, to=int(ir.DataType.FLOAT)), step)
        return op.QuantizeLinear(real, *matmul.inputs[6:8])


class MatMulToFullyConnected(LocalRule):
    """Q(DQ(Q(DQ(a) · DQ(b))) + c) = Q(Gemm(DQ(a), DQ(b), DQ(c'))): a product and its bias as one operator.

    The intermediate grid, where there is one, holds every product that can occur, so that it only rounded, and by less
    than a step of the output.
    """

    exactness = WITHIN_ONE_STEP
    creates = (("", "Gemm"),)

    def pattern(self, op: Patterns, bias: Var) -> Any:
        product = op.MatMul(dequantized(op, "a"), dequantized(op, "b"))
        scale, zero_point = Var("m.scale"), Var("m.zero_point", optional=True)
        again = op.DequantizeLinear(quantized(op, product, "m"), scale, zero_point)
        return quantized(op, op.Add(op.any_of(again, product), bias), "y")

    def check(self, a: ir.Node, b: ir.Node, m: ir.Node | None, y: ir.Node, bias: ir.Value) -> str | None:
        left, right, output = read(a), read(b), written(y)
        if query.rank(left.q) != 2:
            return f"Gemm takes matrices, and the input has rank {query.rank(left.q)}"
        return (
            not_one_type(input=left, output=output)
            or not_one_grid(input=left, output=output)
            or _not_a_constant_matrix(right)
            or linear.not_a_weight(left, right, -1)
            or linear.lost_in_float(left, right, -1, output)
            or self._not_added(left, right, m, output, bias)
        )

    def _not_added(self, a: Operand, b: Operand, m: ir.Node | None, output: Operand, bias: ir.Value) -> str | None:
        if m is None:
            return linear.not_a_bias(bias, a, b, output.step, -1)
        middle, producer = written(m), bias.producer()
        if producer is None or producer.op_type != "DequantizeLinear":
            return "the bias is not behind a DequantizeLinear"
        doubt = not_one_type(output=output, intermediate=middle) or not_one_grid(intermediate=middle)
        return doubt or _folding_moves(a, b, read(producer), middle, output)

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value) -> Any:
        left, right = read(a), read(b)
        steps, columns = linear.step(left, right), linear.channel_count(right, -1)
        assert columns is not None, "the weight was checked"
        levels = linear.bias_levels(bias, steps, columns)
        assert not isinstance(levels, str), "the bias was checked"
        result = op.Gemm(a.outputs[0], b.outputs[0], _int32_bias(op, levels, steps))
        return op.QuantizeLinear(result, *y.inputs[1:], **y.attributes)


RULES: tuple[Rule, ...] = (
    FoldGemmFactors(),
    FoldGemmTranspose(),
    QLinearMatMulToQGemm(),
    MatMulAddToQGemm(),
    MatMulToFloat(),
    AddToMatMulToFloat(),
    QLinearMatMulToInteger(),
    MatMulToFullyConnected(),
)


def _factors(gemm: ir.Node) -> tuple[float, float]:
    return query.float_(gemm, "alpha", 1.0), query.float_(gemm, "beta", 1.0)


def _like(scale: ir.Value | None, values: np.ndarray) -> np.ndarray:
    """Flat values in the shape of a constant scale."""
    array = query.constant(scale)
    assert array is not None, "scales are checked to be constant first"
    return values.reshape(array.shape).astype(np.float32)


def _int32_bias(op: Builder, levels: np.ndarray, steps: np.ndarray) -> ir.Value:
    """A DequantizeLinear of an int32 bias on the grid of the accumulator."""
    scale = steps.astype(np.float32).reshape(-1) if steps.size > 1 else steps.astype(np.float32).reshape(())
    integers = op.constant(np.rint(levels).astype(np.int32), "bias")
    axis = {"axis": 0} if steps.size > 1 else {}
    result: ir.Value = op.DequantizeLinear(integers, op.constant(scale, "bias_scale"), **axis)
    return result


def _not_a_constant_matrix(right: Operand) -> str | None:
    if query.is_constant(right.q) and query.rank(right.q) == 2:
        return None
    return "the second operand is not a constant matrix"


def _goes_to_a_grid(value: ir.Value) -> bool:
    """Whether a product is quantized, at once or after the addition of a constant."""
    user = query.only_consumer(value)
    if user is not None and user.op_type == "Add" and any(query.is_constant(item) for item in user.inputs):
        user = query.only_consumer(user.outputs[0])
    return user is not None and user.op_type == "QuantizeLinear"


def _result_shape(a: ir.Value, b: Operand, result: ir.Value, moved: bool) -> tuple[int | None, ...] | None:
    """The shape of a product, None where a dimension is unknown; that of `result` where it was moved since."""
    if result.shape is not None:
        return tuple(size if isinstance(size, int) else None for size in result.shape)
    if a.shape is None or moved:
        return None
    rows = tuple(size if isinstance(size, int) else None for size in a.shape[:-1])
    return *rows, linear.channel_count(b, -1)


def _not_flat(a: ir.Value, b: Operand, result: ir.Value, moved: bool = False) -> str | None:
    """Why rows cannot be flattened to a matrix and back: at most one dimension may be unknown."""
    rank, shape, columns = query.rank(a), _result_shape(a, b, result, moved), linear.channel_count(b, -1)
    if rank is None or rank < 2 or shape is None:
        return "the shapes of the input and of the result are not known to be matrices or stacks of them"
    if len(shape) == 2 and rank == 2:
        return None
    if shape[-1] != columns:
        return f"the last dimension of the result is {shape[-1]}, not the {columns} columns of the product"
    return None if shape.count(None) <= 1 else f"{list(shape)} has several unknown dimensions"


def _qgemm(
    op: Builder,
    a: Operand,
    b: Operand,
    bias: ir.Value | None,
    grid: tuple[ir.Value, ir.Value],
    shape: tuple[int | None, ...] | None,
) -> ir.Value:
    """QGemm of `a`, flattened to a matrix where it is a stack of them, in the shape of the result."""
    depth, rows = query.static_shape(b.q), a.q
    assert shape is not None and depth is not None, "shapes were checked"
    flat = query.rank(a.q) == 2
    if not flat:
        rows = op.Reshape(a.q, op.constant(np.array([-1, depth[0]], np.int64), "rows"))
    product: ir.Value = op.QGemm(rows, *a.grid(op), *b.triple(op), bias, *grid, _domain=MICROSOFT)
    if flat and len(shape) == 2:
        return product
    sizes = np.array([-1 if size is None else size for size in shape], np.int64)
    back: ir.Value = op.Reshape(product, op.constant(sizes, "shape"))
    return back


def _constant_levels(added: Operand, steps: np.ndarray, b: Operand) -> np.ndarray | str:
    """A quantized constant in steps of the accumulator, one for each column."""
    real, columns = linear.dequantized_constant(added), linear.channel_count(b, -1)
    if real is None or columns is None:
        return "what is added is computed, not constant"
    return linear.levels_of(real, steps, columns)


def _folding_moves(a: Operand, b: Operand, added: Operand, middle: Operand, output: Operand) -> str | None:
    """Why a constant that is added on the output's grid may not join the accumulator instead."""
    steps = linear.step(a, b)
    levels = _constant_levels(added, steps, b)
    if isinstance(levels, str):
        return levels
    assert middle.step is not None and output.step is not None, "grids are checked first"
    moved = middle.step / 2 + float((np.abs(np.rint(levels) - levels) * steps).max(initial=0.0))
    if moved >= output.step:
        return f"the intermediate scale {middle.step:.6g} is not below twice the output scale {output.step:.6g}"
    overflow = linear.overflow(a, b, -1, np.rint(levels).astype(np.int64))
    return overflow or linear.saturates(a, b, -1, middle)
