"""Activations that exporters spell out, as the one operator they are."""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import AnyOf, Output, Patterns, Roots, ValuePattern, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query

# Exporters round such constants in different ways; a float32 holds seven digits.
_RTOL = 1e-6


class _Fusion(Rule):
    """The common part of the rules below: an activation of `x`, in the shape of `x`."""

    exactness = BOUNDED

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        return _broadcast_doubt(x, root)


class FuseGelu(_Fusion):
    """x/2 · (1 + erf(x/√2)) = Gelu(x), in every order of the product, up to float rounding."""

    creates = (("", "Gelu"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        argument = op.any_of(_times(op, x, math.sqrt(0.5)), op.Div(x, op.constant(math.sqrt(2), rtol=_RTOL)))
        return _half_of_product(op, x, op.Add(op.Erf(argument), 1.0))

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        return op.Gelu(x)


class FuseTanhGelu(_Fusion):
    """x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³))) = Gelu(x, approximate=tanh), up to float rounding."""

    creates = (("", "Gelu"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        outer, inner = math.sqrt(2 / math.pi), 0.044715
        cube = op.any_of(op.Pow(x, 3.0), op.Mul(op.any_of(op.Mul(x, x), op.Pow(x, 2.0)), x))
        square = op.any_of(op.Mul(_times(op, x, inner), x), _times(op, op.Mul(x, x), inner))
        argument = op.any_of(
            _times(op, op.Add(x, _times(op, cube, inner)), outer),
            op.Mul(_times(op, x, outer), op.Add(square, 1.0)),
        )
        return _half_of_product(op, x, op.Add(op.Tanh(argument), 1.0))

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        return op.Gelu(x, approximate="tanh")


class FuseHardSwish(_Fusion):
    """x · clip(x + 3, 0, 6) / 6 = x · HardSigmoid(x, 1/6, 1/2) = HardSwish(x), up to float rounding."""

    creates = (("", "HardSwish"),)

    def pattern(self, op: Patterns, x: Var) -> Roots:
        slope = {"alpha": lambda found: found is not None and math.isclose(found, 1 / 6, rel_tol=1e-5)}
        sigmoid = op.HardSigmoid(x, _attrs={**slope, "beta": lambda found: found in (None, 0.5)})
        clipped = op.Clip(op.Add(x, 3.0), 0.0, 6.0)
        return op.any_of(
            op.Mul(x, sigmoid, _name="root"),
            op.Mul(x, _sixth(op, clipped), _name="root"),
            op.Mul(_sixth(op, x), clipped, _name="root"),
            _sixth(op, op.Mul(x, clipped), "root"),
        )

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        return op.HardSwish(x)


def _times(op: Patterns, value: ValuePattern, factor: float) -> Output:
    return op.Mul(value, op.constant(factor, rtol=_RTOL))


def _half(op: Patterns, value: ValuePattern, name: str | None = None) -> AnyOf:
    return op.any_of(op.Mul(value, 0.5, _name=name), op.Div(value, 2.0, _name=name))


def _sixth(op: Patterns, value: ValuePattern, name: str | None = None) -> AnyOf:
    sixth = op.constant(1 / 6, rtol=1e-5)
    return op.any_of(op.Div(value, 6.0, _name=name), op.Mul(value, sixth, _name=name))


def _half_of_product(op: Patterns, x: Var, y: Output) -> AnyOf:
    """x·y/2 with the half on the left, on the right, or on the product."""
    return op.any_of(
        op.Mul(_half(op, x), y, _name="root"),
        op.Mul(x, _half(op, y), _name="root"),
        _half(op, op.Mul(x, y), "root"),
    )


def _broadcast_doubt(x: ir.Value, root: ir.Node) -> str | None:
    """Refuse a result that may not have the shape of `x`: a constant of one element can still add dimensions."""
    ranks = query.rank(x), query.rank(root.outputs[0])
    if None in ranks:
        return f"the rank of {x.name!r} is unknown"
    return None if ranks[0] == ranks[1] else f"a constant raises the rank from {ranks[0]} to {ranks[1]}"
