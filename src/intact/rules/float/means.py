"""Means over large images, for targets that round twice on the way to one: patch by patch first."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query

# A longer stride is another fact about a target (`SplitLongStride`); means of patches need none.
_LONGEST = 7


class MeanOfPatches(Rule):
    """Mean(x) over an image = Mean(Conv(x)), with patches of up to 7 x 7 pixels, each of weight 1/(h·w), side by side.

    Equal up to the order of the sum. A side that no number up to 7 divides is one patch.
    """

    exactness = BOUNDED
    creates = (("", "Conv"),)
    is_rare = True

    def __init__(self, most: int = 49) -> None:
        """The rule for a target that takes the mean of `most` numbers in one step, and of more in two."""
        self.most = most

    def pattern(self, op: Patterns, x: Var, axes: Var) -> Roots:
        return op.ReduceMean(x, op.constant(axes), _name="mean")

    def check(self, x: ir.Value, axes: ir.Value) -> str | None:
        shape = query.static_shape(x)
        if shape is None or len(shape) != 4 or x.dtype is None:
            return f"{query.describe(x)} is no image of known size"
        if sorted(int(axis) % 4 for axis in query.known_constant(axes).reshape(-1)) != [2, 3]:
            return "it is no mean of rows and columns"
        numbers = prod(shape[2:])
        return None if numbers > self.most else f"{numbers} numbers are not more than {self.most}"

    def rewrite(self, op: Builder, x: ir.Value, axes: ir.Value, mean: ir.Node) -> ir.Value:
        _, channels, *sizes = query.known_shape(x)
        assert x.dtype is not None, "checked"
        kernel = [_patch(size) for size in sizes]
        weight = np.full((channels, 1, *kernel), 1 / prod(kernel), x.dtype.numpy())
        strides = [side if side <= _LONGEST else 1 for side in kernel]
        patches = op.Conv(x, op.constant(weight, "mean"), kernel_shape=kernel, strides=strides, group=channels)
        if kernel != sizes:
            return op.like(mean, patches, axes)
        shape = query.known_shape(mean.outputs[0])
        return patches if len(shape) == 4 else op.Reshape(patches, op.constant(np.array(shape, np.int64), "shape"))


def _patch(size: int) -> int:
    """The longest side up to 7 of patches that an image is made of; the whole, where there is none."""
    return next((side for side in range(_LONGEST, 1, -1) if size % side == 0), size)
