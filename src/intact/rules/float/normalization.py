"""LayerNormalization and RMSNormalization from the pieces that exporters leave."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query

_LAYER_NORMALIZATION = (("", "LayerNormalization"),)
_RMS_OPSET = 23
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class FuseLayerNorm(Rule):
    """(x − mean(x)) / √(mean((x − mean(x))²) + ε) = LayerNormalization(x, 1), up to float rounding."""

    exactness = BOUNDED
    creates = _LAYER_NORMALIZATION

    def pattern(self, op: Patterns, x: Var, axes: Var, eps: Var) -> Roots:
        mean = op.ReduceMean(x, op.constant(axes), _name="mean")
        # Two patterns for one difference: some exporters compute it twice.
        centred, again = op.Sub(x, mean), op.Sub(x, mean)
        square = op.any_of(op.Pow(again, 2.0), op.Mul(again, again))
        variance = op.Add(op.ReduceMean(square, op.constant(axes), _name="variance"), op.constant(eps))
        deviation = op.any_of(op.Sqrt(variance), op.Pow(variance, 0.5))
        inverse = op.any_of(op.Reciprocal(deviation), op.Div(1.0, deviation))
        return op.any_of(op.Div(centred, deviation), op.Mul(centred, inverse))

    def check(self, x: ir.Value, axes: ir.Value, eps: ir.Value, mean: ir.Node, variance: ir.Node) -> str | None:
        if x.dtype not in _TYPES:
            return f"the type is {x.dtype}; LayerNormalization computes in float32"
        if any(query.int_(node, "keepdims", 1) != 1 for node in (mean, variance)):
            return "keepdims is 0"
        if query.scalar(eps) is None:
            return "epsilon is not one number"
        return _trailing_axes_doubt(x, axes)

    def rewrite(self, op: Builder, x: ir.Value, axes: ir.Value, eps: ir.Value) -> ir.Value:
        assert x.shape is not None, "checked"
        assert x.dtype is not None, "checked"
        count = len(_axes(axes))
        sizes = [int(size) for size in x.shape[-count:]]  # type: ignore[arg-type]
        scale = op.constant(np.ones(sizes, x.dtype.numpy()), "scale")
        return op.LayerNormalization(x, scale, axis=-count, epsilon=float(query.scalar(eps) or 0.0))


class _IntoLayerNorm(Rule):
    """The common part of the rules for a constant behind a LayerNormalization."""

    exactness = BOUNDED
    creates = _LAYER_NORMALIZATION

    def check(self, x: ir.Value, w: ir.Value, c: ir.Value) -> str | None:
        return _alignment_doubt(x, w, c)


class ScaleLayerNorm(_IntoLayerNorm):
    """c · LayerNormalization(x, w) = LayerNormalization(x, c·w), up to float rounding."""

    def pattern(self, op: Patterns, x: Var, w: Var, c: Var) -> Roots:
        return op.Mul(op.LayerNormalization(x, op.constant(w), _name="norm"), op.constant(c))

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, c: ir.Value, norm: ir.Node) -> ir.Value:
        scale = op.constant(query.known_constant(w) * _aligned(c, w), "scale")
        return op.LayerNormalization(x, scale, **norm.attributes)


class ShiftLayerNorm(_IntoLayerNorm):
    """LayerNormalization(x, w, b) + c = LayerNormalization(x, w, b + c), up to float rounding."""

    def pattern(self, op: Patterns, x: Var, w: Var, c: Var, b: Var | None = None) -> Roots:
        return op.Add(op.LayerNormalization(x, op.constant(w), op.constant(b), _name="norm"), op.constant(c))

    def rewrite(
        self, op: Builder, x: ir.Value, w: ir.Value, c: ir.Value, b: ir.Value | None, norm: ir.Node
    ) -> ir.Value:
        shift = _aligned(c, w) if b is None else query.known_constant(b) + _aligned(c, w)
        return op.LayerNormalization(x, w, op.constant(shift, "bias"), **norm.attributes)


class FuseRmsNorm(Rule):
    """w · x / √(mean(x²) + ε) = RMSNormalization(x, w), up to float rounding.

    The model is raised to the opset that has it: what older ones have means the same there.
    """

    exactness = BOUNDED
    creates = (("", "RMSNormalization"),)
    is_rare = True

    def pattern(self, op: Patterns, x: Var, axes: Var, eps: Var, w: Var) -> Roots:
        square = op.any_of(op.Pow(x, 2.0), op.Mul(x, x))
        power = op.Add(op.ReduceMean(square, op.constant(axes), _name="mean"), op.constant(eps))
        size = op.any_of(op.Sqrt(power), op.Pow(power, 0.5))
        inverse = op.any_of(op.Reciprocal(size), op.Div(1.0, size))
        normal = op.any_of(op.Div(x, size), op.Mul(x, inverse))
        return op.Mul(normal, op.constant(w))

    def check(self, x: ir.Value, axes: ir.Value, eps: ir.Value, w: ir.Value, mean: ir.Node) -> str | None:
        if x.dtype not in _TYPES:
            return f"the type is {x.dtype}; RMSNormalization computes in float32"
        if query.int_(mean, "keepdims", 1) != 1:
            return "keepdims is 0"
        if query.scalar(eps) is None:
            return "epsilon is not one number"
        return _trailing_axes_doubt(x, axes) or _shape_doubt(x, axes, w)

    def rewrite(self, op: Builder, x: ir.Value, axes: ir.Value, eps: ir.Value, w: ir.Value) -> ir.Value:
        epsilon = float(query.scalar(eps) or 0.0)
        op.needs_opset(_RMS_OPSET)
        return op.RMSNormalization(x, w, axis=-len(_axes(axes)), epsilon=epsilon)


def _axes(axes: ir.Value) -> list[int]:
    return [int(axis) for axis in query.known_constant(axes).reshape(-1)]


def _trailing_axes_doubt(x: ir.Value, axes: ir.Value) -> str | None:
    if x.shape is None:
        return f"the shape of {x.name!r} is unknown"
    found = _axes(axes)
    trailing = list(range(len(x.shape) - len(found), len(x.shape)))
    if not found or sorted(axis % len(x.shape) for axis in found) != trailing:
        return f"the mean is over axes {found}, not over the last ones"
    if not all(isinstance(size, int) for size in x.shape[-len(found) :]):
        return "the size of the normalized axes is unknown"
    return None


def _shape_doubt(x: ir.Value, axes: ir.Value, w: ir.Value) -> str | None:
    """Refuse a weight that is not one number for each normalized element."""
    wanted = tuple(x.shape or ())[-len(_axes(axes)) :]
    found = query.known_constant(w).shape
    return None if found == wanted else f"the weight has shape {list(found)}, not {list(wanted)}"


def _alignment_doubt(x: ir.Value, w: ir.Value, c: ir.Value) -> str | None:
    """Refuse a constant that cannot join scale or bias: it is not one number for each normalized element."""
    shape, rank = query.known_constant(c).shape, query.rank(x)
    extra = max(len(shape) - query.known_constant(w).ndim, 0)
    grows = rank is None or len(shape) > rank
    tail = (1,) * (query.known_constant(w).ndim - len(shape)) + shape[extra:]
    fits = all(size in (1, wanted) for size, wanted in zip(tail, query.known_constant(w).shape, strict=True))
    if any(size != 1 for size in shape[:extra]) or not fits or (extra and grows):
        return f"constant {c.name!r} of shape {list(shape)} is not one number for each normalized element"
    return None


def _aligned(c: ir.Value, w: ir.Value) -> np.ndarray:
    """The constant in the shape of the scale."""
    array, shape = query.known_constant(c), query.known_constant(w).shape
    extra = max(array.ndim - len(shape), 0)
    return np.array(np.broadcast_to(array.reshape(array.shape[extra:]), shape))
