"""From QDQ to QLinear operators: DQ → op → Q becomes one operator on integers, where a kernel for it exists.

The float between DQ and Q is rounded to float32, the accumulator of a kernel is not, so that a value close to the
middle between two levels may fall on either: within one step. What only copies integers is exact. Operators of 16
and 4 bits have no integer form and stay as they are; so does what ONNX Runtime's kernels compute wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, WITHIN_ONE_STEP, LocalRule, Rule, snake_case
from intact.model import query
from intact.records import dataclass
from intact.rules.quantized import integer_layers
from intact.rules.quantized.grid_relations import not_one_grid, not_one_type
from intact.rules.quantized.operand import MICROSOFT, Operand, dequantized, dq_operand, q_operand, quantized


class ConvToQLinear(LocalRule):
    """Q(Conv(DQ(x), DQ(w), b)) = QLinearConv(x, w, round(b / (x_scale · w_scale)))."""

    exactness = WITHIN_ONE_STEP
    creates = (("", "QLinearConv"),)

    def pattern(self, op: Patterns, bias: Var | None = None) -> Roots:
        conv = op.Conv(dequantized(op, "x"), dequantized(op, "w"), bias, _name="conv")
        return quantized(op, conv, "y")

    def check(self, x: ir.Node, w: ir.Node, y: ir.Node, bias: ir.Value | None, conv: ir.Node) -> str | None:
        data, weight, output = dq_operand(x), dq_operand(w), q_operand(y)
        return (
            integer_layers.not_a_product(data, weight, 0, output)
            or _slow_depthwise(weight, conv)
            or integer_layers.not_a_bias(bias, data, weight, output.step, 0)
        )

    def rewrite(
        self, op: Builder, x: ir.Node, w: ir.Node, y: ir.Node, bias: ir.Value | None, conv: ir.Node
    ) -> ir.Value:
        data, weight = dq_operand(x), dq_operand(w)
        added = integer_layers.bias_constant(op, bias, data, weight, 0)
        operands = *data.triple(op), *weight.triple(op), *q_operand(y).grid(op)
        return op.QLinearConv(*operands, added, **conv.attributes)


def _slow_depthwise(weight: Operand, conv: ir.Node) -> str | None:
    """Refuse a depthwise convolution that would fall off the fast kernel, to one GEMM for each channel."""
    shape = query.static_shape(weight.q)
    if shape is None or shape[1] != 1 or query.int_(conv, "group", 1) == 1 or np.unique(weight.zeros()).size == 1:
        return None
    return "depthwise weights with distinct zero points have no fast kernel"


class MatMulToQLinear(LocalRule):
    """Q(MatMul(DQ(a), DQ(b))) = QLinearMatMul(a, b)."""

    exactness = WITHIN_ONE_STEP
    creates = (("", "QLinearMatMul"),)

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, op.MatMul(dequantized(op, "a"), dequantized(op, "b")), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node) -> str | None:
        left, right, output = dq_operand(a), dq_operand(b), q_operand(y)
        return integer_layers.not_a_matrix(right) or integer_layers.not_a_product(left, right, -1, output)

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node) -> ir.Value:
        return op.QLinearMatMul(*dq_operand(a).triple(op), *dq_operand(b).triple(op), *q_operand(y).grid(op))


class GemmToQGemm(LocalRule):
    """Q(Gemm(DQ(a), DQ(b), c)) = QGemm(a, b, round(c / (a_scale · b_scale)))."""

    exactness = WITHIN_ONE_STEP
    creates = ((MICROSOFT, "QGemm"),)

    def pattern(self, op: Patterns, bias: Var | None = None) -> Roots:
        return quantized(op, _plain_gemm(op, bias), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> str | None:
        return _not_a_gemm(dq_operand(a), dq_operand(b), bias, gemm, q_operand(y))

    def rewrite(
        self, op: Builder, a: ir.Node, b: ir.Node, y: ir.Node, bias: ir.Value | None, gemm: ir.Node
    ) -> ir.Value:
        return _qgemm(op, dq_operand(a), dq_operand(b), bias, gemm, *q_operand(y).grid(op))


class GemmToFloatQGemm(Rule):
    """Gemm(DQ(a), DQ(b), c) = QGemm(a, b, round(c / (a_scale · b_scale))) in float, up to float rounding."""

    exactness = BOUNDED
    creates = ((MICROSOFT, "QGemm"),)

    def pattern(self, op: Patterns, bias: Var | None = None) -> Roots:
        return _plain_gemm(op, bias)

    def check(self, a: ir.Node, b: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> str | None:
        user = query.only_consumer(gemm.outputs[0])
        if user is not None and user.op_type == "QuantizeLinear":
            return "its output goes to a grid: gemm_to_qgemm takes both"
        return _not_a_gemm(dq_operand(a), dq_operand(b), bias, gemm)

    def rewrite(self, op: Builder, a: ir.Node, b: ir.Node, bias: ir.Value | None, gemm: ir.Node) -> ir.Value:
        return _qgemm(op, dq_operand(a), dq_operand(b), bias, gemm)


def _plain_gemm(op: Patterns, bias: Var | None) -> Output:
    factors = {"alpha": lambda found: found in (None, 1.0), "beta": lambda found: found in (None, 1.0)}
    return op.Gemm(dequantized(op, "a"), dequantized(op, "b"), bias, _attrs=factors, _name="gemm")


def _not_a_gemm(a: Operand, b: Operand, bias: ir.Value | None, gemm: ir.Node, y: Operand | None = None) -> str | None:
    axis, step = integer_layers.gemm_axis(gemm), None if y is None else y.step
    return integer_layers.not_a_product(a, b, axis, y) or integer_layers.not_a_bias(bias, a, b, step, axis)


def _qgemm(op: Builder, a: Operand, b: Operand, bias: ir.Value | None, gemm: ir.Node, *grid: ir.Value) -> ir.Value:
    added = integer_layers.bias_constant(op, bias, a, b, integer_layers.gemm_axis(gemm))
    kept = {name: gemm.attributes[name] for name in ("transA", "transB") if name in gemm.attributes}
    return op.QGemm(*a.triple(op), *b.triple(op), added, *grid, _domain=MICROSOFT, **kept)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """An operator whose integer kernel takes its operands, each with a grid, and the grid of the output.

    `doubt` says why the kernel does not do what a node does: it gets the node, its operands and the output.
    `attributes` are those of the operator that the kernel has, `fixed` those that it has besides.
    """

    op: str
    doubt: Callable[..., str | None]
    operands: tuple[str, ...] = ("input",)
    attributes: tuple[str, ...] = ()
    fixed: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    @property
    def equation(self) -> str:
        """The claim, as the documentation shows it."""
        names = ("x",) if len(self.operands) == 1 else ("a", "b")
        floats = ", ".join(f"DQ({name})" for name in names)
        return f"Q({self.op}({floats})) = QLinear{self.op}({', '.join(names)}){self.where}."


def _no_doubt(node: ir.Node, x: Operand, y: Operand) -> str | None:
    return None


def _inexact_add(node: ir.Node, a: Operand, b: Operand, y: Operand) -> str | None:
    return integer_layers.added_in_float(y, a, b)


def _large_product(node: ir.Node, a: Operand, b: Operand, y: Operand) -> str | None:
    return integer_layers.beyond_int32(y, integer_layers.extent(a) * integer_layers.extent(b))


def _wrong_softmax(node: ir.Node, x: Operand, y: Operand) -> str | None:
    levels = 1.0 / np.float64(y.step or 1.0)
    if levels != 256.0:
        return f"1/y_scale is {levels:.6g}: the kernel is right for 256 only"
    return softmax_of_one(node)


def softmax_of_one(node: ir.Node) -> str | None:
    """Refuse a Softmax that the kernel gets wrong: its one element is 1, whose 256 steps it turns into 0."""
    axis, value = query.int_(node, "axis", -1), node.inputs[0]
    sizes = None if value is None else value.shape
    alone = sizes is not None and -len(sizes) <= axis < len(sizes) and sizes[axis] == 1
    return "the axis has one element, which the kernel turns into 0" if alone else None


def _other_pool(node: ir.Node, x: Operand, y: Operand) -> str | None:
    spread = query.ints(node, "dilations")
    if any(step != 1 for step in spread):
        return f"the kernel has no dilations, found {spread}"
    return counts_beyond(node) or integer_layers.beyond_int32(y, integer_layers.extent(x))


def counts_beyond(node: ir.Node) -> str | None:
    """Refuse a pool whose last window reaches beyond the padding: kernels for integers and floats differ."""
    if not (query.int_(node, "ceil_mode", 0) and query.int_(node, "count_include_pad", 0)):
        return None
    return "with ceil_mode 1 and count_include_pad 1 the kernels for integers and floats divide by other counts"


def _other_mean(node: ir.Node, x: Operand, y: Operand) -> str | None:
    rank = query.rank(x.q)
    if rank is None or rank < 3:
        return f"the kernel wants rank 3 or more, found {rank}"
    return integer_layers.added_in_float(y, x) or _out_of_proportion(x, y)


def _out_of_proportion(input: Operand, output: Operand) -> str | None:
    """Refuse scales at which the kernel stops: x_scale / (y_scale · elements) is from 2^-32 up, below 256."""
    shape, ratio = query.static_shape(input.q), input.known_step / output.known_step
    most = 2**24 if shape is None else math.prod(shape[2:])
    least = 1 if shape is None else most
    if ratio / most >= 2**-32 and ratio / least < 256:
        return None
    return f"x_scale is {ratio:.6g} times y_scale: the kernel takes 2^-32 to 256 times the number of elements"


_PAIR = ("first", "second")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_WHOLE = " where 1/y_scale is a whole number: the kernel rounds it down"

ROWS = (
    KernelRow("Add", _inexact_add, _PAIR),
    KernelRow("Mul", _large_product, _PAIR),
    KernelRow("Sigmoid", _no_doubt),
    KernelRow("LeakyRelu", _no_doubt, attributes=("alpha",)),
    KernelRow("Softmax", _wrong_softmax, attributes=("axis",), fixed={"opset": 13}, where=_WHOLE),
    KernelRow("AveragePool", _other_pool, attributes=_POOL),
    KernelRow("GlobalAveragePool", _other_mean),
)


class KernelToQLinear(LocalRule):
    """Q(op(DQ(x), …)) = QLinear_op(x, …): a rule for each of `ROWS`, with one type and single scales."""

    exactness = WITHIN_ONE_STEP

    def __init__(self, row: KernelRow) -> None:
        self.row = row
        self.name = snake_case(f"{row.op}ToQLinear")
        self.creates = ((MICROSOFT, f"QLinear{row.op}"),)
        self.__doc__ = row.equation

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        return tuple(cls(row) for row in ROWS)

    def pattern(self, op: Patterns) -> Roots:
        operands = [dequantized(op, name) for name in self.row.operands]
        return quantized(op, op.node(self.row.op, *operands, _name="node"), "y")

    def check(self, node: ir.Node, y: ir.Node) -> str | None:
        operands, output = self._operands(node), q_operand(y)
        everything = {**operands, "output": output}
        return (
            not_one_type(**everything) or not_one_grid(**everything) or self.row.doubt(node, *operands.values(), output)
        )

    def rewrite(self, op: Builder, node: ir.Node, y: ir.Node) -> ir.Value:
        kept = {name: node.attributes[name] for name in self.row.attributes if name in node.attributes}
        inputs = [value for operand in self._operands(node).values() for value in operand.triple(op)]
        grid = q_operand(y).grid(op)
        return op.node(f"QLinear{self.row.op}", *inputs, *grid, _domain=MICROSOFT, _attrs={**kept, **self.row.fixed})

    def _operands(self, node: ir.Node) -> dict[str, Operand]:
        """The operands of the node, by the names of the row."""
        sources = [None if value is None else value.producer() for value in node.inputs]
        found = zip(self.row.operands, sources, strict=True)
        return {name: dq_operand(source) for name, source in found if source is not None}


class ConcatToQLinear(LocalRule):
    """Q(Concat(DQ(a), DQ(b), …)) = QLinearConcat(a, b, …), each requantized for itself."""

    exactness = EXACT
    creates = ((MICROSOFT, "QLinearConcat"),)

    def pattern(self, op: Patterns) -> Roots:
        return quantized(op, op.Concat(op.each(dequantized(op, "x")), _name="concat"), "y")

    def check(self, x: tuple[ir.Node, ...], y: ir.Node) -> str | None:
        operands = {"output": q_operand(y), **{f"input {index}": dq_operand(node) for index, node in enumerate(x)}}
        return not_one_type(**operands) or not_one_grid(**operands)

    def rewrite(self, op: Builder, x: tuple[ir.Node, ...], y: ir.Node, concat: ir.Node) -> ir.Value:
        inputs = [value for node in x for value in dq_operand(node).triple(op)]
        return op.QLinearConcat(*q_operand(y).grid(op), *inputs, _domain=MICROSOFT, **concat.attributes)


class WhereToQLinear(LocalRule):
    """Q(Where(c, DQ(a), DQ(b))) = QLinearWhere(c, a, b), both requantized."""

    exactness = EXACT
    creates = ((MICROSOFT, "QLinearWhere"),)

    def pattern(self, op: Patterns, condition: Var) -> Roots:
        return quantized(op, op.Where(condition, dequantized(op, "a"), dequantized(op, "b")), "y")

    def check(self, a: ir.Node, b: ir.Node, y: ir.Node) -> str | None:
        operands = {"first": dq_operand(a), "second": dq_operand(b), "output": q_operand(y)}
        return not_one_type(**operands) or not_one_grid(**operands)

    def rewrite(self, op: Builder, condition: ir.Value, a: ir.Node, b: ir.Node, y: ir.Node) -> ir.Value:
        operands = *dq_operand(a).triple(op), *dq_operand(b).triple(op), *q_operand(y).grid(op)
        return op.QLinearWhere(condition, *operands, _domain=MICROSOFT)
