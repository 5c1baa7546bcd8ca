"""Constant factors and shifts beside Q and DQ nodes: the grid takes them over."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP, LocalRule, Rule
from intact.model import query
from intact.numbers import integer
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dequantized, dq_operand, q_operand, quantized

# A shift this close to a whole number of steps is one: float32 cannot say it better.
_WHOLE = 1e-3

GELU = "the factor is part of a Gelu, which ONNX Runtime computes in one node as long as all of it is there"


class _IntoQuantize(LocalRule):
    """The common part of the rules for a factor before Q."""

    def pattern(self, op: Patterns, x: Var, c: Var) -> Roots:
        return quantized(op, op.node(("Mul", "Div"), x, op.constant(c), _name="scale"), "last")

    def check(self, x: ir.Value, c: ir.Value, scale: ir.Node, last: ir.Node) -> str | None:
        doubt = _not_a_factor(self, c, x) or _leaves_float(q_operand(last), 1 / _factor(scale, c))
        return doubt or (GELU if _ends_gelu(x) else None)

    def rewrite(self, op: Builder, x: ir.Value, c: ir.Value, scale: ir.Node, last: ir.Node) -> ir.Value:
        scales = op.constant(_scaled(q_operand(last), 1 / _factor(scale, c)), "scale")
        return op.QuantizeLinear(x, scales, *last.inputs[2:], **last.attributes)


class FoldPowerOfTwoIntoQuantize(_IntoQuantize):
    """Q(c·x, s, z) = Q(x, s/c, z) where c is a power of two: float32 loses nothing."""

    exactness = EXACT


class _IntoDequantize(LocalRule):
    """The common part of the rules for a factor behind DQ."""

    def pattern(self, op: Patterns, c: Var) -> Roots:
        return op.node(("Mul", "Div"), dequantized(op, "first"), op.constant(c), _name="scale")

    def check(self, c: ir.Value, scale: ir.Node, first: ir.Node) -> str | None:
        doubt = _not_a_factor(self, c, first.outputs[0]) or _leaves_float(dq_operand(first), _factor(scale, c))
        return doubt or (GELU if _begins_gelu(first.outputs[0], scale) else None)

    def rewrite(self, op: Builder, c: ir.Value, scale: ir.Node, first: ir.Node) -> ir.Value:
        scales = op.constant(_scaled(dq_operand(first), _factor(scale, c)), "scale")
        return op.DequantizeLinear(first.inputs[0], scales, *first.inputs[2:], **first.attributes)


class FoldPowerOfTwoIntoDequantize(_IntoDequantize):
    """c·DQ(x, s, z) = DQ(x, c·s, z) where c is a power of two: float32 loses nothing."""

    exactness = EXACT


class FoldShiftIntoDequantize(LocalRule):
    """DQ(x, s, z) + k·s = DQ(x, s, z − k) where float32 agrees for every integer that x can be."""

    exactness = EXACT

    def pattern(self, op: Patterns, c: Var) -> Roots:
        return op.node(("Add", "Sub"), dequantized(op, "first"), op.constant(c), _name="shift")

    def check(self, c: ir.Value, shift: ir.Node, first: ir.Node) -> str | None:
        source = dq_operand(first)
        doubt = _not_one_number(c, first.outputs[0]) or _no_room(source, -_shift(shift, c))
        return doubt or _differs_somewhere(source, _shift(shift, c))

    def rewrite(self, op: Builder, c: ir.Value, shift: ir.Node, first: ir.Node) -> ir.Value:
        zero = op.constant(_moved_zero(dq_operand(first), -_shift(shift, c)), "zero_point")
        return op.DequantizeLinear(first.inputs[0], first.inputs[1], zero, **first.attributes)


class FoldScaleIntoQuantize(_IntoQuantize):
    """Q(c·x, s, z) = Q(x, s/c, z) within one step, and the same for a division by c, for c > 0."""

    exactness = WITHIN_ONE_STEP


class FoldScaleIntoDequantize(_IntoDequantize):
    """c·DQ(x, s, z) = DQ(x, c·s, z) up to float rounding, far less than a step, for c > 0."""

    exactness = WITHIN_ONE_STEP


class FoldShiftIntoQuantize(LocalRule):
    """Q(x + k·s, s, z) = Q(x, s, z + k) within one step: only ties may round to the other side."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns, x: Var, c: Var) -> Roots:
        return quantized(op, op.node(("Add", "Sub"), x, op.constant(c), _name="shift"), "last")

    def check(self, x: ir.Value, c: ir.Value, shift: ir.Node, last: ir.Node) -> str | None:
        return _not_one_number(c, x) or _no_room(q_operand(last), _shift(shift, c))

    def rewrite(self, op: Builder, x: ir.Value, c: ir.Value, shift: ir.Node, last: ir.Node) -> ir.Value:
        zero = op.constant(_moved_zero(q_operand(last), _shift(shift, c)), "zero_point")
        return op.like(last, x, last.inputs[1], zero, _dropped=("output_dtype",))


def _ends_gelu(x: ir.Value) -> bool:
    """True if x is y · (1 + erf(…)), which half of is a Gelu."""
    product = x.producer()
    factors = () if product is None or product.op_type != "Mul" else product.inputs
    sums = [node for value in factors if value is not None and (node := value.producer()) and node.op_type == "Add"]
    terms = [value.producer() for node in sums for value in node.inputs if value is not None]
    return any(node is not None and node.op_type == "Erf" for node in terms)


def _begins_gelu(x: ir.Value, scale: ir.Node) -> bool:
    """True if erf or the sigmoid of the scaled x goes on, while x itself waits to be multiplied."""
    user = query.only_consumer(scale.outputs[0])
    if user is None or user.op_type not in ("Erf", "Sigmoid"):
        return False
    return any(node is not scale and node.op_type == "Mul" for node in query.consumers(x))


def _not_one_number(c: ir.Value, other: ir.Value) -> str | None:
    """Refuse a constant that is not a number that leaves the shape of the other operand alone."""
    if not query.is_scalar(c):
        return f"constant {c.name!r} of shape {c.shape} is not one number"
    dims, rank = query.rank(c) or 0, query.rank(other)
    if dims == 0 or (rank is not None and dims <= rank):
        return None
    return (
        f"constant {c.name!r} has {dims} dimensions, the other operand {'an unknown number' if rank is None else rank}"
    )


def _not_a_factor(rule: Rule, c: ir.Value, other: ir.Value) -> str | None:
    """Refuse a constant that is no positive number, and for a rule that is exact no power of two."""
    doubt = _not_one_number(c, other)
    if doubt is not None:
        return doubt
    # Written so that NaN is refused as well.
    if not 0 < _number(c) < np.inf:
        return f"the factor {_number(c):g} is not positive"
    mantissa, _ = np.frexp(_number(c))
    return f"{_number(c):g} is not a power of two" if rule.exactness is EXACT and mantissa != 0.5 else None


def _factor(scale: ir.Node, c: ir.Value) -> float:
    return _number(c) if scale.op_type == "Mul" else 1 / _number(c)


def _number(c: ir.Value) -> float:
    number = query.scalar(c)
    assert number is not None, f"{c.name!r} was checked to be one number"
    return float(number)


def _scaled(operand: Operand, factor: float) -> np.ndarray:
    scales = query.known_constant(operand.scale)
    with np.errstate(over="ignore"):
        return (scales.astype(np.float64) * factor).astype(np.float32)


def _leaves_float(operand: Operand, factor: float) -> str | None:
    """Refuse a grid that cannot take the factor: computed, or with a scale beyond what float32 holds well."""
    doubt = grid_relations.unusable(operand)
    if doubt is not None:
        return doubt
    scaled = _scaled(operand, factor)
    if ((scaled >= grid_relations.SMALLEST_SCALE) & (scaled <= grid_relations.LARGEST_SCALE)).all():
        return None
    return f"the scale would be {scaled.reshape(-1)[0]:.6g}"


def _shift(shift: ir.Node, c: ir.Value) -> float:
    return _number(c) if shift.op_type == "Add" else -_number(c)


def _no_room(operand: Operand, amount: float) -> str | None:
    """Refuse to move the zero point by an amount that is no whole number of steps, or leaves the type."""
    doubt = not_one_grid(grid=operand) or grid_relations.unusable(operand)
    if doubt is not None:
        return doubt
    steps = amount / operand.known_step
    if not abs(steps - round(steps)) <= _WHOLE:
        return f"the constant is {steps:.6g} steps of {operand.known_step:.6g}, not a whole number"
    zero = operand.zero + round(steps)
    low, high = operand.limits
    return None if low <= zero <= high else f"the zero point would be {zero}, outside of {low} to {high}"


def _moved_zero(operand: Operand, amount: float) -> np.ndarray:
    zero = np.asarray(operand.zero + round(amount / operand.known_step)).astype(operand.known_dtype.numpy())
    shape = query.static_shape(operand.scale)
    return zero.reshape(shape or ())


def _differs_somewhere(operand: Operand, amount: float) -> str | None:
    """Refuse where DQ(x) + amount and DQ with the zero point moved differ for an integer of the type."""
    levels, step = grid_relations.every_level(operand), np.float32(operand.step)
    added = grid_relations.dequantize(levels, operand) + np.float32(amount)
    moved = integer.dequantize_linear(levels, step, _moved_zero(operand, -amount))
    differing = int((added != moved).sum())
    return f"float32 rounds the sum differently for {differing} of {levels.size} integers" if differing else None
