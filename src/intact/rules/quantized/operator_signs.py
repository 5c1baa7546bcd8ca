"""Integer operators in the types of the fastest kernels: uint8 activations and int8 weights, with the same values.

An integer operator has one type throughout: it is put between two conversions, and conversions that meet cancel out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import OpKey, Patterns, Roots, Var
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.operand import (
    INT8,
    MICROSOFT,
    UINT8,
    Operand,
    described,
    dq_operand,
    not_one_grid,
    not_one_type,
    output_operand,
    q_operand,
    quantized,
)
from intact.rules.quantized.product import CONVOLUTIONS, MATRICES, matches, product
from intact.rules.quantized.saturation import SaturationRule, weight_of
from intact.rules.quantized.signs import not_shifted, shifted, shifted_zero
from intact.targets.spec import Forms

FAMILY = "integer_forms"

Place: TypeAlias = tuple[int, int, int]
"""The inputs of an operator that are the integers, the scale and the zero point of one operand."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The inputs of an integer operator that are its activations, its weight, and the grid of its output."""

    activations: tuple[Place, ...]
    output: int | None
    weight: Place | None = None


_PRODUCTS: dict[OpKey, _Layout] = {
    ("", "QLinearConv"): _Layout(((0, 1, 2),), 6, (3, 4, 5)),
    ("", "QLinearMatMul"): _Layout(((0, 1, 2),), 6, (3, 4, 5)),
    (MICROSOFT, "QGemm"): _Layout(((0, 1, 2),), 7, (3, 4, 5)),
    (MICROSOFT, "MatMulIntegerToFloat"): _Layout(((0, 2, 4),), None, (1, 3, 5)),
}
_OTHERS: dict[OpKey, _Layout] = {
    (MICROSOFT, "QLinearAdd"): _Layout(((0, 1, 2), (3, 4, 5)), 6),
    (MICROSOFT, "QLinearMul"): _Layout(((0, 1, 2), (3, 4, 5)), 6),
    (MICROSOFT, "QLinearWhere"): _Layout(((1, 2, 3), (4, 5, 6)), 7),
    (MICROSOFT, "QLinearSigmoid"): _Layout(((0, 1, 2),), 3),
    (MICROSOFT, "QLinearLeakyRelu"): _Layout(((0, 1, 2),), 3),
    (MICROSOFT, "QLinearAveragePool"): _Layout(((0, 1, 2),), 3),
    (MICROSOFT, "QLinearGlobalAveragePool"): _Layout(((0, 1, 2),), 3),
}


def _layout(node: ir.Node) -> _Layout:
    if node.op_type == "QLinearConcat":
        return _Layout(tuple((index, index + 1, index + 2) for index in range(2, len(node.inputs), 3)), 0)
    key = node.domain, node.op_type
    return _PRODUCTS[key] if key in _PRODUCTS else _OTHERS[key]


def _at(node: ir.Node, place: Place) -> Operand:
    q, scale, zero_point = (query.input_(node, index) for index in place)
    assert q is not None, f"{node.op_type} has an input {place[0]}"
    return Operand(q, scale, zero_point, zero_point.dtype if zero_point is not None else q.dtype)


def _products(node: ir.Node) -> tuple[Operand, Operand]:
    """The two operands of a product on integers."""
    layout = _layout(node)
    assert layout.weight is not None, f"{node.op_type} is a product"
    return _at(node, layout.activations[0]), _at(node, layout.weight)


def _output(node: ir.Node) -> Operand | None:
    """The grid of the output; None where it is float."""
    index = _layout(node).output
    return None if index is None or query.input_(node, index) is None else output_operand(node, index)


class UnsignProduct(SaturationRule):
    """QLinearConv(x, w) = (QLinearConv(x + 128, w) - 128) on uint8 instead of int8; MatMul and Gemm alike."""

    exactness = EXACT

    def __init__(self, saturates: bool = False, worth_converting: int | None = None) -> None:
        super().__init__(saturates)
        self.worth_converting = worth_converting

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.saturates, forms.worth_converting)

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, _PRODUCTS)

    def check(self, node: ir.Node) -> str | None:
        (data, weight), grid = _products(node), _output(node)
        if (data.dtype, weight.dtype) != (INT8, INT8):
            return "it is not a product of int8 with int8"
        if data.q.producer() is None and not self._pays(node, data):
            return f"{data.q.name!r} comes from outside as int8, and little is computed with it"
        reason = not_one_grid(input=data) if grid is None else not_one_grid(input=data, output=grid)
        return reason or self.pairs_saturate(weight_of(weight), _channel_axis(node))

    def _pays(self, node: ir.Node, data: Operand) -> bool:
        """True if the faster kernel makes up for a conversion of activations that come from outside."""
        count, shape = product(node).multiplications, query.static_shape(data.q)
        if self.worth_converting is None or count is None or shape is None:
            return False
        return count >= self.worth_converting * math.prod(shape)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return _unsigned(op, node)


class UnsignOperator(LocalRule):
    """QLinearAdd(a, b) = (QLinearAdd(a + 128, b + 128) - 128), where an operand was uint8 before; others alike."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, _OTHERS)

    def check(self, node: ir.Node) -> str | None:
        return _not_signed(node)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return _unsigned(op, node)


class UnsignConcat(UnsignOperator):
    """QLinearConcat(a, b, …) on uint8 instead of int8, where an operand was uint8 before."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, ((MICROSOFT, "QLinearConcat"),))


def _not_signed(node: ir.Node) -> str | None:
    """Refuse an operator that is not one on int8 whose operand was uint8 before."""
    layout, output = _layout(node), _output(node)
    assert output is not None, f"{node.op_type} writes to a grid"
    operands = {f"input {place[0]}": _at(node, place) for place in layout.activations}
    if any(operand.dtype != INT8 for operand in (*operands.values(), output)):
        return "it does not compute on int8"
    if not any(_was_unsigned(operand) for operand in operands.values()):
        return "no operand was uint8 before"
    return not_one_type(**operands, output=output) or not_one_grid(**operands, output=output)


def _was_unsigned(operand: Operand) -> bool:
    """True if int8 integers are uint8 ones of the same grid, converted."""
    quantize = operand.q.producer()
    if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
        return False
    dequantize = quantize.inputs[0].producer()
    if dequantize is None or dequantize.op_type != "DequantizeLinear":
        return False
    return dq_operand(dequantize).dtype == UINT8 and not_shifted(dq_operand(dequantize), q_operand(quantize)) is None


def _unsigned(op: Builder, node: ir.Node) -> ir.Value:
    """The operator on uint8, between conversions of its operands and of its result."""
    layout, grid = _layout(node), _output(node)
    inputs: dict[int, ir.Value | None] = dict(enumerate(node.inputs))
    for place in layout.activations:
        operand = _at(node, place)
        inputs[place[2]] = shifted_zero(op, operand)
        inputs[place[0]] = _as_unsigned(op, operand, inputs[place[2]])
    if grid is None or layout.output is None:
        return _like(op, node, inputs)
    inputs[layout.output + 1] = shifted_zero(op, grid)
    integers = described(_like(op, node, inputs), UINT8, node.outputs[0].shape)
    real = op.DequantizeLinear(integers, grid.scale, inputs[layout.output + 1])
    return op.QuantizeLinear(real, *grid.grid(op))


def _like(op: Builder, node: ir.Node, inputs: dict[int, ir.Value | None]) -> ir.Value:
    """The same operator with other inputs, given by index."""
    given = (inputs.get(index) for index in range(max(inputs) + 1))
    return op.like(node, *given)


def _as_unsigned(op: Builder, operand: Operand, zero_point: ir.Value | None) -> ir.Value:
    constant = query.constant(operand.q)
    if constant is not None:
        return op.constant(shifted(constant), "unsigned")
    real = op.DequantizeLinear(operand.q, operand.scale, operand.zero_point)
    return described(op.QuantizeLinear(real, operand.scale, zero_point), UINT8, operand.q.shape)


class SignWeight(SaturationRule):
    """x · (w - z) = x · ((w - 128) - (z - 128)): int8 instead of uint8 weights behind uint8 activations."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, _PRODUCTS)

    def check(self, node: ir.Node) -> str | None:
        data, weight = _products(node)
        if (data.dtype, weight.dtype) != (UINT8, UINT8) or not query.is_constant(weight.q):
            return "it is not a product of uint8 activations with a constant uint8 weight"
        if weight.zero_point is not None and not query.is_constant(weight.zero_point):
            return "the zero point of the weight is computed"
        return self.pairs_saturate(weight_of(weight), _channel_axis(node))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        place = _layout(node).weight
        assert place is not None, f"{node.op_type} is a product"
        weight = _at(node, place)
        integers = op.constant(shifted(query.constant(weight.q)), "weight")
        changed = {place[0]: integers, place[2]: shifted_zero(op, weight)}
        return _like(op, node, {**dict(enumerate(node.inputs)), **changed})


def _channel_axis(node: ir.Node) -> int:
    """The axis of the output channels in the weight of an integer operator."""
    return integer_layers.gemm_axis(node) if node.op_type == "QGemm" else 0 if node.op_type == "QLinearConv" else -1


class UnsignWeight(SaturationRule):
    """x · (w - z) = x · ((w + 128) - (z + 128)): uint8 instead of int8 weights, where uint8 × int8 would saturate."""

    exactness = EXACT

    def __init__(self, saturates: bool = True) -> None:
        super().__init__(saturates)

    def is_needed(self, forms: Forms) -> bool:
        return forms.saturates

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (*CONVOLUTIONS, *MATRICES))

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        if (found.x.dtype, found.w.dtype) != (UINT8, INT8) or not query.is_constant(found.w.q):
            return "it is not a product of uint8 activations with a constant int8 weight"
        if found.w.zero_point is not None and not query.is_constant(found.w.zero_point):
            return "the zero point of the weight is computed"
        safe = self.pairs_saturate(query.constant(found.w.q), found.w.axis) is None
        return "its sums of two products stay within 16 bits" if safe else None

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found = product(node)
        integers, zero_point = op.constant(shifted(query.constant(found.w.q)), "weight"), shifted_zero(op, found.w)
        return _like(op, node, {**dict(enumerate(node.inputs)), **found.weight_places(integers, zero_point)})


class SignSecondOperand(SaturationRule):
    """a · move(Q(b, s, z)) = a · move(Q(b, s, z - 128)) in int8 instead of uint8, where a is uint8."""

    exactness = EXACT
    _MOVES: ClassVar[tuple[str, ...]] = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Identity")

    def pattern(self, op: Patterns, s: Var, z: Var) -> Roots:
        q = quantized(op, Var("x"), "q")
        once = op.node(self._MOVES, q, op.each(Var("rest1", optional=True)), _name="move1")
        twice = op.node(self._MOVES, once, op.each(Var("rest2", optional=True)), _name="move2")
        source = op.any_of(q, once, twice)
        a, scale, zero = Var("a"), Var("a_scale"), Var("a_zero")
        bias = Var("bias", optional=True)
        return op.any_of(
            op.QLinearMatMul(a, scale, zero, source, s, z, Var("ys"), Var("yz"), _name="node"),
            op.MatMulIntegerToFloat(a, source, scale, s, zero, z, bias, _domain=MICROSOFT, _name="node"),
        )

    def check(self, q: ir.Node, node: ir.Node) -> str | None:
        data, second = _products(node)
        if (data.dtype, second.dtype) != (UINT8, UINT8):
            return "it is not a product of uint8 with uint8"
        return not_one_grid(second=second, quantized=q_operand(q)) or self.pairs_saturate(None, -1)

    def rewrite(self, op: Builder, q: ir.Node, node: ir.Node, move1: ir.Node | None, move2: ir.Node | None) -> ir.Value:
        _, second = _products(node)
        zero_point = shifted_zero(op, second)
        # The product may take the integers for another scale than they were written with: each keeps its own.
        value = op.QuantizeLinear(q.inputs[0], q.inputs[1], shifted_zero(op, q_operand(q)))
        value = described(value, INT8, q.outputs[0].shape)
        for move in (move1, move2):
            if move is not None:
                value = described(op.like(move, value, *move.inputs[1:]), INT8, move.outputs[0].shape)
        place = _layout(node).weight
        assert place is not None, f"{node.op_type} is a product"
        return _like(op, node, {**dict(enumerate(node.inputs)), place[0]: value, place[2]: zero_point})
