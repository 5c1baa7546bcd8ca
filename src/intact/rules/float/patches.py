"""Convolutions over patches that lie side by side, for targets that take no strides as long as a patch.

Such a target computes them at a shorter stride and throws most results away: a patch of 16 × 16 pixels costs it many
times what it has to.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query


class SplitLongStride(Rule):
    """Conv(x, W, stride a·b) = Conv(Conv(x, I, stride a), V, stride b) where I takes a·a pixels into channels.

    V is W in the order of these channels. Equal up to the order of sums.
    """

    exactness = BOUNDED
    creates = (("", "Conv"),)
    is_rare = True

    def __init__(self, longest: int = 1) -> None:
        """The rule for a target that takes strides up to `longest`."""
        self.longest = longest

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var | None = None) -> Roots:
        return op.Conv(x, op.constant(w), b, _name="conv")

    def check(self, w: ir.Value, conv: ir.Node) -> str | None:
        shape = query.known_shape(w)
        if len(shape) != 4:
            return f"{query.describe(w)} is not a convolution of images"
        kernel, strides = shape[2:], tuple(query.ints(conv, "strides", default=(1, 1)))
        if max(strides) <= self.longest:
            return f"no stride of {list(strides)} is above {self.longest}"
        if kernel != strides or any(query.ints(conv, "pads")) or query.string(conv, "auto_pad", "NOTSET") != "NOTSET":
            return f"patches of {list(kernel)} with strides {list(strides)} or padding overlap or leave gaps"
        if query.int_(conv, "group", 1) != 1 or set(query.ints(conv, "dilations", default=(1, 1))) != {1}:
            return "it has groups or dilations"
        if any(length > self.longest and _step(length, self.longest) is None for length in strides):
            return f"no step of 2 to {self.longest} divides the strides {list(strides)}"
        return None

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value | None, conv: ir.Node) -> ir.Value:
        weight = query.known_constant(w)
        outputs, channels, *strides = weight.shape
        steps = [_step(length, self.longest) or 1 for length in strides]
        counts = [length // step for length, step in zip(strides, steps, strict=True)]
        cut = weight.reshape(outputs, channels, counts[0], steps[0], counts[1], steps[1])
        behind = cut.transpose(0, 1, 3, 5, 2, 4).reshape(outputs, channels * steps[0] * steps[1], *counts)
        pixels = op.constant(_moving(channels, steps, weight.dtype), "pixels")
        cells = op.Conv(x, pixels, kernel_shape=steps, strides=steps, group=channels)
        return op.like(conv, cells, op.constant(behind, "weight"), b, kernel_shape=counts, strides=counts)


def _step(length: int, longest: int) -> int | None:
    """The shortest step that leaves a stride of at most `longest`, or the longest step; None where there is none.

    A stride that is in no need of it has the step 1. One that is still too long is split once more.
    """
    if length <= longest:
        return 1
    steps = [step for step in range(2, longest + 1) if length % step == 0]
    enough = [step for step in steps if length // step <= longest]
    return min(enough) if enough else max(steps, default=None)


def _moving(channels: int, steps: list[int], dtype: np.dtype) -> np.ndarray:
    """Weights of a convolution by channel whose outputs are the pixels of a cell, each as it is."""
    size = steps[0] * steps[1]
    return np.tile(np.eye(size, dtype=dtype).reshape(size, 1, *steps), (channels, 1, 1, 1))
