"""Operators that change places where the result is the same and the other order is the cheaper one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, Rule
from intact.model import query
from intact.rules.float.moves import perm_of

# What a Relu or Clip behind it becomes part of, on every target.
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "BatchNormalization"})
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
_MOVES = ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten")


class ClipBeforeMaxPool(Rule):
    """Relu(MaxPool(x)) = MaxPool(Relu(x)), and the same for Clip: behind a layer they then become part of it."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, limits: Var) -> Roots:
        return op.node(("Relu", "Clip"), op.MaxPool(x, _name="pool"), op.each(limits), _name="clip")

    def check(self, x: ir.Value, pool: ir.Node) -> str | None:
        producer = x.producer()
        if producer is None or producer.op_type not in _LAYERS:
            return "no layer stands before the pool"
        if query.only_consumer(x) is None:
            return f"{query.describe(x)} has other readers"
        return "the pool gives positions, too" if len([out for out in pool.outputs if out.name]) > 1 else None

    def rewrite(self, op: Builder, x: ir.Value, limits: tuple[ir.Value, ...], pool: ir.Node, clip: ir.Node) -> ir.Value:
        return op.like(pool, op.like(clip, x, *limits))


class ReduceBeforeMove(Rule):
    """Reduce(Move(x), a) = Reshape(Reduce(x, b)), if the axes that are left stay in order; b are a before the move.

    Move is a Transpose, or a Reshape that only adds and removes axes of size 1; the same up to float rounding.
    """

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, axes: Var, shape: Var | None = None) -> Roots:
        return op.node(_REDUCTIONS, op.node(_MOVES, x, shape, _name="move"), op.constant(axes), _name="root")

    def check(self, x: ir.Value, axes: ir.Value, move: ir.Node, root: ir.Node) -> str | None:
        if query.static_shape(x) is None or query.static_shape(root.outputs[0]) is None:
            return "a shape is unknown"
        if query.only_consumer(move.outputs[0]) is None:
            return f"{query.describe(move.outputs[0])} has other readers"
        return "axes that are left change places" if _axes_before(x, axes, move) is None else None

    def rewrite(self, op: Builder, x: ir.Value, axes: ir.Value, move: ir.Node, root: ir.Node) -> ir.Value:
        before = _axes_before(x, axes, move)
        assert before is not None, "checked"
        reduced = op.like(root, x, op.constant(np.array(before, np.int64), "axes"), keepdims=1)
        return op.Reshape(reduced, op.constant(np.array(query.known_shape(root.outputs[0]), np.int64), "shape"))


def _axes_before(x: ir.Value, axes: ir.Value, move: ir.Node) -> tuple[int, ...] | None:
    """The axes of x that are reduced; None where the others do not pass in order."""
    sizes, moved = query.known_shape(x), query.static_shape(move.outputs[0])
    constant = query.constant(axes)
    if moved is None or constant is None or not constant.size:
        return None
    origin = _origin(sizes, moved, move)
    if origin is None:
        return None
    reduced = {int(axis) % len(moved) for axis in constant.reshape(-1)}
    left = [origin[axis] for axis in range(len(moved)) if axis not in reduced and moved[axis] != 1]
    taken = tuple(sorted(found for axis in reduced if (found := origin[axis]) is not None))
    kept = [axis for axis in left if axis is not None]
    return taken if taken and kept == sorted(kept) and len(kept) == len(left) else None


def _origin(sizes: tuple[int, ...], moved: tuple[int, ...], move: ir.Node) -> list[int | None] | None:
    """For each axis behind a move the axis before it; None for one of size 1 that is new."""
    if move.op_type == "Transpose":
        return list(perm_of(move))
    if [size for size in sizes if size != 1] != [size for size in moved if size != 1]:
        return None
    axes = iter(axis for axis, size in enumerate(sizes) if size != 1)
    return [None if size == 1 else next(axes) for size in moved]
