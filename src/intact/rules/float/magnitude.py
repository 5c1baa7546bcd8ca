"""The size of a vector without its squares, which no grid of integers holds.

Of numbers that are a thousandth of the largest the squares are a millionth of its square: below one step of 16 bits.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query


class _ByDirection(Rule):
    """‖v‖ = v · (v / ‖v‖), up to float rounding: an error of the direction counts in the second order only."""

    exactness = BOUNDED
    creates = (("", "LpNormalization"),)
    is_rare = True

    @staticmethod
    def size(op: Builder, vector: ir.Value, axis: int, *, keepdims: bool) -> ir.Value:
        """The size of `vector` along `axis`; LpNormalization gives 0 for 0."""
        projected = op.Mul(vector, op.LpNormalization(vector, axis=axis, p=2))
        return op.ReduceSum(projected, op.constant(np.array([axis]), "axes"), keepdims=int(keepdims))


class MagnitudeOfPair(_ByDirection):
    """√(x² + y²) = v · v / ‖v‖ for v = (x, y), up to float rounding."""

    def pattern(self, op: Patterns, x: Var, y: Var) -> Roots:
        squares = [op.any_of(op.Pow(value, 2.0), op.Mul(value, value)) for value in (x, y)]
        total = op.Add(*squares)
        return op.any_of(op.Sqrt(total), op.Pow(total, 0.5))

    def check(self, x: ir.Value, y: ir.Value) -> str | None:
        shapes = [query.static_shape(value) for value in (x, y)]
        if None in shapes or shapes[0] != shapes[1]:
            return "the shapes of the two are unknown, or differ"
        return _not_float32(x) or _not_float32(y)

    def rewrite(self, op: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
        last = op.constant(np.array([-1]), "axes")
        pair = op.Concat(op.Unsqueeze(x, last), op.Unsqueeze(y, last), axis=-1)
        return self.size(op, pair, -1, keepdims=False)


class MagnitudeAlongAxis(_ByDirection):
    """√Σx² = Σ x · x / ‖x‖ along one axis, up to float rounding."""

    def pattern(self, op: Patterns, x: Var, axes: Var) -> Roots:
        square = op.any_of(op.Pow(x, 2.0), op.Mul(x, x))
        total = op.ReduceSum(square, op.constant(axes), _name="total")
        return op.any_of(op.Sqrt(total), op.Pow(total, 0.5))

    def check(self, x: ir.Value, axes: ir.Value) -> str | None:
        count = query.known_constant(axes).size
        return _not_float32(x) if count == 1 else f"the sum is along {count} axes"

    def rewrite(self, op: Builder, x: ir.Value, axes: ir.Value, total: ir.Node) -> ir.Value:
        axis = int(query.known_constant(axes).reshape(-1)[0])
        return self.size(op, x, axis, keepdims=query.int_(total, "keepdims", 1) == 1)


def _not_float32(value: ir.Value) -> str | None:
    return None if value.dtype == ir.DataType.FLOAT else f"the type of {value.name!r} is {value.dtype}, not float32"
