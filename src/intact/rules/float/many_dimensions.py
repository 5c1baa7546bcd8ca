"""Operators over more dimensions than a target takes, on fewer: those that an operator leaves alone are joined.

A window of an image is cut out over six dimensions, which an NPU that takes five leaves to the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Replacement, Rule
from intact.model import query
from intact.rules.float.moves import perm_of, reshape

_REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum")


class ManyDimensionsRule(Rule):
    """An operator whose input has more dimensions than a target takes."""

    exactness = EXACT
    creates = (("", "Reshape"),)
    is_rare = True

    def __init__(self, most: int = 5) -> None:
        """The rule for a target that takes `most` dimensions, which are four at least."""
        self.most = most

    def _doubt(self, *values: ir.Value) -> str | None:
        if any(query.static_shape(value) is None for value in values):
            return "a shape is unknown"
        found = max(len(query.known_shape(value)) for value in values)
        return None if found > self.most else f"{found} dimensions are not more than {self.most}"


class TransposeInTurns(ManyDimensionsRule):
    """Transpose(x, p) = Reshape(Transpose(Reshape(x), q)), with neighbours that stay neighbours joined.

    Where even these are too many, two neighbouring blocks change places at a time, until all stand where they belong.
    """

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Transpose(x, _name="turn")

    def check(self, x: ir.Value) -> str | None:
        return self._doubt(x)

    def rewrite(self, op: Builder, x: ir.Value, turn: ir.Node) -> ir.Value:
        sizes, order = _joined(query.known_shape(x), perm_of(turn))
        if len(sizes) <= self.most:
            turned = op.Transpose(reshape(op, x, sizes), perm=list(order))
        else:
            turned = _in_turns(op, x, sizes, order)
        return reshape(op, turned, query.known_shape(turn.outputs[0]))


class SplitInThree(ManyDimensionsRule):
    """Split(x) = Reshape(Split(Reshape(x))), with what is before the axis joined, and what is behind it."""

    def pattern(self, op: Patterns, x: Var, rest: Var) -> Roots:
        return op.every_output(op.Split(x, op.each(rest), _name="split"))

    def check(self, x: ir.Value, split: ir.Node) -> str | None:
        return self._doubt(x, *split.outputs)

    def rewrite(self, op: Builder, x: ir.Value, rest: tuple[ir.Value, ...], split: ir.Node) -> Replacement:
        shape = query.known_shape(x)
        axis = query.int_(split, "axis", 0) % len(shape)
        parts = op.outputs_like(split, reshape(op, x, _around(shape, axis, axis + 1)), *rest, axis=1)
        shapes = [query.known_shape(output) for output in split.outputs]
        return [reshape(op, part, shape) for part, shape in zip(parts, shapes, strict=True)]


class ReduceInThree(ManyDimensionsRule):
    """Reduce(x) = Reshape(Reduce(Reshape(x))), with what is before the axes joined, they themselves, and the rest."""

    def pattern(self, op: Patterns, x: Var, axes: Var) -> Roots:
        return op.node(_REDUCTIONS, x, op.constant(axes), _name="reduce")

    def check(self, x: ir.Value, axes: ir.Value, reduce: ir.Node) -> str | None:
        doubt = self._doubt(x, reduce.outputs[0])
        if doubt is not None:
            return doubt
        found = _axes(axes, x)
        apart = found != list(range(found[0], found[0] + len(found))) if found else True
        return f"axes {found} do not stand beside each other" if apart else None

    def rewrite(self, op: Builder, x: ir.Value, axes: ir.Value, reduce: ir.Node) -> ir.Value:
        found = _axes(axes, x)
        flat = reshape(op, x, _around(query.known_shape(x), found[0], found[-1] + 1))
        reduced = op.like(reduce, flat, op.constant(np.array([1], np.int64), "axes"), keepdims=0)
        return reshape(op, reduced, query.known_shape(reduce.outputs[0]))


def _axes(axes: ir.Value, x: ir.Value) -> list[int]:
    rank = len(query.known_shape(x))
    return sorted({int(axis) % rank for axis in query.known_constant(axes).reshape(-1)})


def _around(shape: Sequence[int], first: int, end: int) -> tuple[int, int, int]:
    """The shape with the axes from `first` to `end` joined, those before them, and those behind."""
    return prod(shape[:first]), prod(shape[first:end]), prod(shape[end:])


def _joined(shape: Sequence[int], perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """The sizes of blocks of axes that stay together, and where each stands then; axes of size 1 are left out."""
    blocks: list[list[int]] = []
    for axis in (axis for axis in perm if shape[axis] != 1):
        between = shape[blocks[-1][-1] + 1 : axis] if blocks and blocks[-1][-1] < axis else (0,)
        if all(size == 1 for size in between):
            blocks[-1].append(axis)
        else:
            blocks.append([axis])
    before = sorted(blocks)
    return [prod(shape[axis] for axis in block) for block in before], [before.index(block) for block in blocks]


def _in_turns(op: Builder, x: ir.Value, sizes: Sequence[int], order: Sequence[int]) -> ir.Value:
    """The blocks of x in another order, of which two that stand side by side change places at a time."""
    now = list(range(len(sizes)))
    for place, wanted in enumerate(order):
        start = end = now.index(wanted)
        if start == place:
            continue
        while end < len(now) and now[end] == order[place + end - start]:
            end += 1
        parts = now[:place], now[place:start], now[start:end], now[end:]
        four = [prod(sizes[block] for block in part) for part in parts]
        x = op.Transpose(reshape(op, x, four), perm=[0, 2, 1, 3])
        now = [*parts[0], *parts[2], *parts[1], *parts[3]]
    return x
