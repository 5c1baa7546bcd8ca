"""Integer operators in the types of the fastest kernels: uint8 activations and int8 weights, with the same values.

An integer operator has one type throughout: it is put between two conversions, and conversions that meet cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self, TypeAlias

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import OpKey, Patterns, Roots, Var
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.records import dataclass
from intact.rules.quantized.grid_relations import not_one_grid, not_one_type
from intact.rules.quantized.operand import (
    INT8,
    MICROSOFT,
    UINT8,
    Operand,
    described,
    dq_operand,
    output_operand,
    q_operand,
    quantized,
)
from intact.rules.quantized.product import CONVOLUTIONS, MATRICES, Product, matches, product
from intact.rules.quantized.saturation import SaturationRule, weight_of
from intact.rules.quantized.signs import not_shifted, shifted, shifted_zero
from intact.targets.spec import Forms

FAMILY = "integer_forms"

Place: TypeAlias = tuple[int, int, int]
"""The inputs of an operator that are the integers, the scale and the zero point of one operand."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The inputs of an integer operator that are its activations, and those from which on the grid of its output is."""

    activations: tuple[Place, ...]
    output: int | None


_PRODUCTS: dict[OpKey, _Layout] = {
    ("", "QLinearConv"): _Layout(((0, 1, 2),), 6),
    ("", "QLinearMatMul"): _Layout(((0, 1, 2),), 6),
    (MICROSOFT, "QGemm"): _Layout(((0, 1, 2),), 7),
    (MICROSOFT, "MatMulIntegerToFloat"): _Layout(((0, 2, 4),), None),
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
        found, grid = product(node), _output(node)
        if (found.x.dtype, found.w.dtype) != (INT8, INT8):
            return "it is not a product of int8 with int8"
        if found.x.q.producer() is None and not self._pays(found):
            return f"{found.x.q.name!r} comes from outside as int8, and little is computed with it"
        reason = not_one_grid(input=found.x) if grid is None else not_one_grid(input=found.x, output=grid)
        return reason or self.pairs_saturate(weight_of(found.w), found.w.axis)

    def _pays(self, found: Product) -> bool:
        """True if the faster kernel makes up for a conversion of activations that come from outside."""
        count, shape = found.multiplications, query.static_shape(found.x.q)
        if self.worth_converting is None or count is None or shape is None:
            return False
        return count >= self.worth_converting * math.prod(shape)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return _unsigned(op, node)


class MatchWeightSign(LocalRule):
    """x · (w - z) = x · ((w - 128) - (z - 128)): int8 instead of uint8 beside int8, for which kernels are."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, _PRODUCTS)

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        if (found.x.dtype, found.w.dtype) != (INT8, UINT8):
            return "it is not a product of int8 with uint8"
        if not query.is_constant(found.w.q):
            return not_one_grid(second=found.w)
        known = found.w.zero_point is None or query.is_constant(found.w.zero_point)
        return None if known else "the zero point of the weight is computed"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found = product(node)
        if query.is_constant(found.w.q):
            return _with_other_sign(op, found)
        zero_point = shifted_zero(op, found.w)
        real = op.DequantizeLinear(found.w.q, found.w.scale, found.w.zero_point)
        integers = described(op.QuantizeLinear(real, found.w.scale, zero_point), INT8, found.w.q.shape)
        return _like(op, node, found.weight_places(integers, zero_point))


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
    changed: dict[int, ir.Value] = {}
    for place in layout.activations:
        operand = _at(node, place)
        changed[place[2]] = shifted_zero(op, operand)
        changed[place[0]] = _as_unsigned(op, operand, changed[place[2]])
    if grid is None or layout.output is None:
        return _like(op, node, changed)
    changed[layout.output + 1] = shifted_zero(op, grid)
    integers = described(_like(op, node, changed), UINT8, node.outputs[0].shape)
    real = op.DequantizeLinear(integers, grid.scale, changed[layout.output + 1])
    return op.QuantizeLinear(real, *grid.grid(op))


def _like(op: Builder, node: ir.Node, changed: Mapping[int, ir.Value | None]) -> ir.Value:
    """The same operator with other inputs at some places."""
    inputs = {**dict(enumerate(node.inputs)), **changed}
    return op.like(node, *(inputs.get(index) for index in range(max(inputs) + 1)))


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
        found = product(node)
        return _no_weight_of(UINT8, found) or self.pairs_saturate(weight_of(found.w), found.w.axis)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return _with_other_sign(op, product(node))


def _no_weight_of(dtype: ir.DataType, found: Product) -> str | None:
    """Refuse a product of other operands than uint8 activations and a constant weight of this type."""
    if (found.x.dtype, found.w.dtype) != (UINT8, dtype) or not query.is_constant(found.w.q):
        return f"it is not a product of uint8 activations with a constant {dtype.name.lower()} weight"
    if found.w.zero_point is not None and not query.is_constant(found.w.zero_point):
        return "the zero point of the weight is computed"
    return None


def _with_other_sign(op: Builder, found: Product) -> ir.Value:
    """The product with its weight, and the zero points of that, 128 higher or lower in the other sign."""
    integers = op.constant(shifted(query.constant(found.w.q)), "weight")
    return _like(op, found.node, found.weight_places(integers, shifted_zero(op, found.w)))


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
        doubt = _no_weight_of(INT8, found)
        if doubt is not None:
            return doubt
        safe = self.pairs_saturate(query.constant(found.w.q), found.w.axis) is None
        return "its sums of two products stay within 16 bits" if safe else None

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return _with_other_sign(op, product(node))


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
        found = product(node)
        if (found.x.dtype, found.w.dtype) != (UINT8, UINT8):
            return "it is not a product of uint8 with uint8"
        return not_one_grid(second=found.w, quantized=q_operand(q)) or self.pairs_saturate(None, -1)

    def rewrite(self, op: Builder, q: ir.Node, node: ir.Node, move1: ir.Node | None, move2: ir.Node | None) -> ir.Value:
        found = product(node)
        zero_point = shifted_zero(op, found.w)
        # The product may take the integers for another scale than they were written with: each keeps its own.
        value = op.QuantizeLinear(q.inputs[0], q.inputs[1], shifted_zero(op, q_operand(q)))
        value = described(value, INT8, q.outputs[0].shape)
        for move in (move1, move2):
            if move is not None:
                value = described(op.like(move, value, *move.inputs[1:]), INT8, move.outputs[0].shape)
        return _like(op, node, found.weight_places(value, zero_point))
