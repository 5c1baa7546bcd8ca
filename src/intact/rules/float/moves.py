"""Operators that only move elements: merged where two do the work of one, and removed where they do none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import query
from intact.rules.float.identity import DropRule

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_BROADCASTING = ("Add", "Sub", "Mul", "Div", "And", "Or", "Equal")

# Targets may ask for no more than so many, and what joins others (`many_dimensions`) must not be undone.
_FEW_DIMENSIONS = 5
# Beyond this, finding out what indices do would cost more than it is worth.
_MOST_INDICES = 1 << 20


class DropReshape(DropRule):
    """Reshape(x, shape of x) = x, and the same for Flatten, Squeeze, Unsqueeze and Expand."""

    def pattern(self, op: Patterns, x: Var, shape: Var | None = None) -> Roots:
        return op.node((*_RESHAPES, "Expand"), x, shape, _name="root")

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        before, after = query.static_shape(x), query.static_shape(root.outputs[0])
        if before is None or before != after:
            return f"the shape changes from {x.shape} to {root.outputs[0].shape}"
        return super().check(x, root)


class MergeReshapes(Rule):
    """Reshape(Reshape(x, a), b) = Reshape(x, b), and the same for Flatten, Squeeze and Unsqueeze."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, inner: Var | None = None, outer: Var | None = None) -> Roots:
        return op.node(_RESHAPES, op.node(_RESHAPES, x, inner), outer, _name="root")

    def check(self, root: ir.Node) -> str | None:
        return _shape_doubt(root.outputs[0])

    def rewrite(self, op: Builder, x: ir.Value, root: ir.Node) -> ir.Value:
        return reshape(op, x, query.known_shape(root.outputs[0]))


class DropTranspose(DropRule):
    """Transpose(x, 0 1 2 …) = x."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Transpose(x, _name="root")

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        perm = perm_of(root)
        if not perm or perm != tuple(range(len(perm))):
            return f"axes change places: {list(perm)}"
        return super().check(x, root)


class MergeTransposes(Rule):
    """Transpose(Transpose(x, p), q) = Transpose(x, p[q])."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Transpose(op.Transpose(x, _name="first"), _name="second")

    def check(self, first: ir.Node, second: ir.Node) -> str | None:
        return None if perm_of(first) and perm_of(second) else "the rank is unknown"

    def rewrite(self, op: Builder, x: ir.Value, first: ir.Node, second: ir.Node) -> ir.Value:
        return op.Transpose(x, perm=[perm_of(first)[axis] for axis in perm_of(second)])


class MergeReshapedTranspose(Rule):
    """Reshape(Transpose(Reshape(x))) = Transpose(x), where the reshapes only add and remove axes of size 1."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, inner: Var | None = None, outer: Var | None = None) -> Roots:
        transposed = op.Transpose(op.node(_RESHAPES, x, inner, _name="first"), _name="transpose")
        return op.node(_RESHAPES, transposed, outer, _name="root")

    def check(self, x: ir.Value, first: ir.Node, transpose: ir.Node, root: ir.Node) -> str | None:
        for value in (x, first.outputs[0], root.outputs[0]):
            if _shape_doubt(value) is not None:
                return _shape_doubt(value)
        if len(query.known_shape(x)) > max(len(perm_of(transpose)), _FEW_DIMENSIONS):
            return f"it would have more than {_FEW_DIMENSIONS} dimensions"
        found = _perm_through(x, first, transpose, root)
        return None if found is not None else "the reshapes do more than to add and remove axes of size 1"

    def rewrite(self, op: Builder, x: ir.Value, first: ir.Node, transpose: ir.Node, root: ir.Node) -> ir.Value:
        return op.Transpose(x, perm=_perm_through(x, first, transpose, root))


class GatherInOrder(Rule):
    """GatherND(x, all positions in order) = Reshape(x), repeated by Expand where they repeat; the same for Gather."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, indices: Var) -> Roots:
        return op.node(("Gather", "GatherND"), x, op.constant(indices), _name="root")

    def check(self, x: ir.Value, indices: ir.Value, root: ir.Node) -> str | None:
        for value in (x, root.outputs[0]):
            if _shape_doubt(value) is not None:
                return _shape_doubt(value)
        if query.int_(root, "batch_dims", 0) != 0:
            return "it has batch dimensions"
        if max(math.prod(query.known_shape(x)), math.prod(query.known_shape(root.outputs[0]))) > _MOST_INDICES:
            return f"it moves more than {_MOST_INDICES} elements"
        return None if _in_order(x, indices, root) is not None else "elements change places, or some are left out"

    def rewrite(self, op: Builder, x: ir.Value, indices: ir.Value, root: ir.Node) -> ir.Value:
        once = _in_order(x, indices, root)
        assert once is not None, "checked"
        shape = query.known_shape(root.outputs[0])
        reshaped = reshape(op, x, once)
        return reshaped if once == shape else _expand(op, reshaped, shape)


class DropCast(DropRule):
    """Cast(x, type of x) = x."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Cast(x, _name="root")

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        if x.dtype is None or x.dtype != query.int_(root, "to", 0):
            return f"the type changes from {x.dtype}"
        return super().check(x, root)


class DropSlice(DropRule):
    """Slice(x, all of every axis) = x."""

    def pattern(
        self, op: Patterns, x: Var, starts: Var, ends: Var, axes: Var | None = None, steps: Var | None = None
    ) -> Roots:
        return op.Slice(x, starts, ends, axes, op.constant(steps), _name="root")

    def check(self, x: ir.Value, root: ir.Node, steps: ir.Value | None = None) -> str | None:
        before, after = query.static_shape(x), query.static_shape(root.outputs[0])
        if before is None or before != after:
            return f"the shape changes from {x.shape} to {root.outputs[0].shape}"
        taken = query.constant(steps)
        if taken is not None and (taken < 0).any():
            return "it reverses an axis"
        return super().check(x, root)


class DropConcat(DropRule):
    """Concat(x) = x."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Concat(x, _name="root")


class DropExpand(Rule):
    """f(Expand(x), y) = f(x, y), where y alone brings x to the shape of the result."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, shape: Var, y: Var) -> Roots:
        expanded = op.Expand(x, shape, _shared=True)
        first = op.node(_BROADCASTING, expanded, y, _name="root")
        return op.any_of(first, op.node(("Sub", "Div"), y, expanded, _name="root"))

    def check(self, x: ir.Value, y: ir.Value, root: ir.Node) -> str | None:
        shapes = [query.static_shape(value) for value in (x, y, root.outputs[0])]
        if None in shapes:
            return "a shape is unknown"
        if np.broadcast_shapes(shapes[0] or (), shapes[1] or ()) != shapes[2]:
            return f"{query.describe(y)} does not bring {query.describe(x)} to the shape {root.outputs[0].shape}"
        return None

    def rewrite(self, op: Builder, x: ir.Value, y: ir.Value, root: ir.Node) -> ir.Value:
        swapped = root.inputs[0] is y
        return op.node(root.op_type, *((y, x) if swapped else (x, y)))


class DelayExpand(Rule):
    """f(Expand(x), c) = Expand(f(x, c)) for one number c."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, shape: Var, c: Var) -> Roots:
        expanded, number = op.Expand(x, shape, _shared=True), op.constant(c)
        first = op.node(("Add", "Sub", "Mul", "Div"), expanded, number, _name="root")
        return op.any_of(first, op.node(("Sub", "Div"), number, expanded, _name="root"))

    def check(self, x: ir.Value, c: ir.Value, root: ir.Node) -> str | None:
        if not query.is_scalar(c):
            return f"{query.describe(c)} is not one number"
        rank = query.rank(x)
        if rank is None or rank < (query.rank(c) or 0):
            return "the number raises the rank"
        return _shape_doubt(root.outputs[0])

    def rewrite(self, op: Builder, x: ir.Value, c: ir.Value, root: ir.Node) -> ir.Value:
        swapped = root.inputs[0] is c
        inner = op.node(root.op_type, *((c, x) if swapped else (x, c)))
        return _expand(op, inner, query.known_shape(root.outputs[0]))


def _shape_doubt(value: ir.Value) -> str | None:
    return f"the shape of {query.describe(value)} is unknown" if query.static_shape(value) is None else None


def reshape(op: Builder, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """x in another shape."""
    return op.Reshape(x, op.constant(np.array(shape, np.int64), "shape"))


def _expand(op: Builder, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return op.Expand(x, op.constant(np.array(shape, np.int64), "shape"))


def perm_of(node: ir.Node) -> tuple[int, ...]:
    """The axes of the input in the order of the output; empty where the rank is unknown."""
    reversal = tuple(range(query.rank(node.inputs[0]) or 0))[::-1]
    return query.ints(node, "perm", reversal)


def _perm_through(x: ir.Value, first: ir.Node, transpose: ir.Node, root: ir.Node) -> tuple[int, ...] | None:
    """The permutation of x that gives the result, where all axes of other sizes than 1 pass one by one."""
    before, after = query.known_shape(x), query.known_shape(root.outputs[0])
    inside = query.known_shape(first.outputs[0])
    axes = [axis for axis, size in enumerate(before) if size != 1]
    if [before[axis] for axis in axes] != [size for size in inside if size != 1] or len(before) != len(after):
        return None
    named = iter(axes)
    names = [None if size == 1 else next(named) for size in inside]
    moved = [names[axis] for axis in perm_of(transpose) if names[axis] is not None]
    if [before[axis] for axis in moved if axis is not None] != [size for size in after if size != 1]:
        return None
    ones = iter(axis for axis, size in enumerate(before) if size == 1)
    order = iter(moved)
    perm = [next(ones) if size == 1 else next(order) for size in after]
    return tuple(axis for axis in perm if axis is not None)


def _in_order(x: ir.Value, indices: ir.Value, root: ir.Node) -> tuple[int, ...] | None:
    """The shape of the result without its repetitions, where it holds every element of x once and in order."""
    positions = np.arange(math.prod(query.known_shape(x))).reshape(query.known_shape(x))
    where = query.known_constant(indices)
    if root.op_type == "Gather":
        found = np.take(positions, where, axis=query.int_(root, "axis", 0))
    else:
        found = positions[tuple(np.moveaxis(where, -1, 0))]
    for axis in range(found.ndim):
        first = found.take([0], axis)
        if found.shape[axis] and (found == first).all():
            found = first
    same = found.size == positions.size and (found.reshape(-1) == positions.reshape(-1)).all()
    return tuple(found.shape) if same else None
