"""Convolutions over few channels, in two steps: pixels into channels, then the rest over fewer of them.

A target that takes no strides as long as a patch computes it at a shorter one and throws most results away. A target
that multiplies many channels at once fills up the three of an image with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query
from intact.model.multiplications import filled
from intact.records import dataclass

# Two layers also move more data than one: a smaller gain is none.
_MOST_OF_THE_PRICE = 0.75
# Where neighbours are copied, as much data as before is moved several times.
_MOST_WITH_COPIES = 0.6


class TakePixelsIntoChannels(Rule):
    """Conv(x, W, stride s) = Conv(Conv(x, I, stride s), V) where I takes s·s pixels into channels.

    V is W in the order of these channels, with zeros where its windows do not begin at a cell of s·s pixels. Equal up
    to the order of sums.
    """

    exactness = BOUNDED
    creates = (("", "Conv"),)
    is_rare = True

    def __init__(self, lanes: int = 1) -> None:
        """The rule for a target that multiplies `lanes` channels at once, be there as many or not."""
        self.lanes = lanes

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var | None = None) -> Roots:
        return op.Conv(x, op.constant(w), b, _name="conv")

    def check(self, x: ir.Value, w: ir.Value, conv: ir.Node) -> str | None:
        if len(query.known_shape(w)) != 4 or query.static_shape(x) is None:
            return f"{query.describe(x)} is no image of known size"
        if query.int_(conv, "group", 1) != 1 or set(query.ints(conv, "dilations", default=(1, 1))) != {1}:
            return "it has groups or dilations"
        strides = query.ints(conv, "strides", default=(1, 1))
        if max(strides) == 1 or query.string(conv, "auto_pad", "NOTSET") != "NOTSET":
            return f"strides {list(strides)} skip no pixel, or its padding is not given in numbers"
        ways = _ways(x, w, conv)
        if any(way is None for way in ways):
            return (
                f"{query.describe(x)} is no whole number of cells of {list(strides)} pixels, or they are not all read"
            )
        return self._price_doubt(w, [way for way in ways if way is not None])

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value | None, conv: ir.Node) -> ir.Value:
        weight = query.known_constant(w)
        ways = [way for way in _ways(x, w, conv) if way is not None]
        strides = [way.stride for way in ways]
        padded = np.pad(weight, [(0, 0), (0, 0), *((way.lead, way.trail(way.kernel)) for way in ways)])
        behind = _into_channels(padded, [way.cells for way in ways], strides)
        moving = op.constant(_moving(weight.shape[1], strides, weight.dtype), "pixels")
        cells = op.Conv(x, moving, kernel_shape=strides, strides=strides, group=weight.shape[1])
        pads = [*(way.before for way in ways), *(way.behind for way in ways)]
        windows = [way.cells for way in ways]
        return op.like(conv, cells, op.constant(behind, "weight"), b, kernel_shape=windows, strides=[1, 1], pads=pads)

    def _price_doubt(self, w: ir.Value, ways: list[_Way]) -> str | None:
        outputs, channels, *kernel = query.known_shape(w)
        cell = prod(way.stride for way in ways)
        outputs = filled(outputs, self.lanes)
        now = outputs * prod(kernel) * filled(channels, self.lanes)
        then = outputs * prod(way.cells for way in ways) * filled(channels * cell, self.lanes)
        then += filled(channels * cell, self.lanes) * cell * self.lanes
        enough = now * _MOST_OF_THE_PRICE
        return None if then <= enough else f"{then} instead of {now} multiplications for each result save too few"


@dataclass(frozen=True, slots=True)
class _Way:
    """A convolution along one axis in cells of `stride` pixels: how many it reads, and how many are padding.

    `lead` are the pixels of the first cell that are not read.
    """

    kernel: int
    stride: int
    lead: int
    cells: int
    before: int
    behind: int

    def trail(self, kernel: int) -> int:
        """Pixels of the last cell that a window of `kernel` pixels does not read."""
        return self.cells * self.stride - self.lead - kernel


def _ways(x: ir.Value, w: ir.Value, conv: ir.Node) -> list[_Way | None]:
    """The axes of a convolution in cells; None for one where the pixels do not come out even."""
    sizes, kernel = query.known_shape(x)[2:], query.known_shape(w)[2:]
    strides, pads = query.ints(conv, "strides", default=(1, 1)), query.ints(conv, "pads", default=(0, 0, 0, 0))
    return [_way(sizes[axis], kernel[axis], strides[axis], (pads[axis], pads[axis + 2])) for axis in range(2)]


def _way(size: int, kernel: int, stride: int, pads: tuple[int, int]) -> _Way | None:
    before = -(-pads[0] // stride)
    lead = before * stride - pads[0]
    cells = -(-(lead + kernel) // stride)
    results = (size + sum(pads) - kernel) // stride + 1
    behind = results + cells - 1 - before - size // stride
    return _Way(kernel, stride, lead, cells, before, behind) if size % stride == 0 and behind >= 0 else None


class TakeNeighboursIntoChannels(Rule):
    """Conv(x, W) = Conv(Conv(x, I), V) where I takes n pixels, as far apart as V is long, into channels.

    V is W in the order of these channels, an n-th as long along one axis, with zeros behind its end. Equal up to the
    order of sums.
    """

    exactness = BOUNDED
    creates = (("", "Conv"),)
    is_rare = True

    def __init__(self, lanes: int = 1) -> None:
        """The rule for a target that multiplies `lanes` channels at once, be there as many or not."""
        self.lanes = lanes

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var | None = None) -> Roots:
        return op.Conv(x, op.constant(w), b, _name="conv")

    def check(self, w: ir.Value, conv: ir.Node) -> str | None:
        shape = query.known_shape(w)
        if len(shape) != 4:
            return f"{query.describe(w)} is not a convolution of images"
        if query.int_(conv, "group", 1) != 1 or set(query.ints(conv, "dilations", default=(1, 1))) != {1}:
            return "it has groups or dilations"
        strides = query.ints(conv, "strides", default=(1, 1))
        if max(strides) > 1 or query.string(conv, "auto_pad", "NOTSET") != "NOTSET":
            return f"strides {list(strides)} skip pixels, or its padding is not given in numbers"
        stack, now = self._best(shape), prod((filled(shape[0], self.lanes), *shape[2:], filled(shape[1], self.lanes)))
        if stack is None:
            return f"{shape[1]} channels of {list(shape[2:])} pixels leave no room among {self.lanes}"
        if stack.price > _MOST_WITH_COPIES * now:
            return f"{stack.price} instead of {now} multiplications for each result save too few"
        return None

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value | None, conv: ir.Node) -> ir.Value:
        weight = query.known_constant(w)
        stack = self._best(weight.shape)
        assert stack is not None, "check has found one"
        outputs, channels = weight.shape[:2]
        axis, apart = stack.axis, stack.apart
        missing = stack.count * apart - weight.shape[2 + axis]
        behind = np.pad(weight, [(0, missing if index == 2 + axis else 0) for index in range(4)])
        # Copies of a channel stand side by side, as a convolution by channel writes them.
        parts = np.stack(np.split(behind, stack.count, axis=2 + axis), axis=2)
        copies, dilations = _along(axis, stack.count), _along(axis, apart)
        pads = query.ints(conv, "pads", default=(0, 0, 0, 0))
        own = [pad if index % 2 == axis else 0 for index, pad in enumerate(pads)]
        own[2 + axis] += missing
        neighbours = op.Conv(
            x,
            op.constant(_moving(channels, copies, weight.dtype), "neighbours"),
            kernel_shape=copies,
            dilations=dilations,
            pads=own,
            group=channels,
        )
        final = op.constant(parts.reshape(outputs, channels * stack.count, *parts.shape[3:]), "weight")
        others = [0 if index % 2 == axis else pad for index, pad in enumerate(pads)]
        return op.like(conv, neighbours, final, b, kernel_shape=list(parts.shape[3:]), pads=others)

    def _best(self, shape: Sequence[int]) -> _Stack | None:
        """The cheapest way to copy pixels into channels; None where there are too many channels, or one pixel."""
        most = self.lanes // shape[1]
        tried = [
            self._stack(shape, axis, count) for axis in (1, 0) for count in range(2, min(most, shape[2 + axis]) + 1)
        ]
        return min(tried, key=lambda stack: stack.price, default=None)

    def _stack(self, shape: Sequence[int], axis: int, count: int) -> _Stack:
        outputs, channels, kernel = shape[0], shape[1], shape[2 + axis]
        apart = -(-kernel // count)
        stacked = filled(channels * count, self.lanes)
        price = filled(outputs, self.lanes) * apart * shape[3 - axis] * stacked
        return _Stack(axis, count, apart, price + stacked * count * filled(channels, self.lanes))


@dataclass(frozen=True, slots=True)
class _Stack:
    """So many pixels along an axis of an image, so far apart, in channels; the multiplications for each result."""

    axis: int
    count: int
    apart: int
    price: int


def _along(axis: int, number: int) -> list[int]:
    """Sizes of an image's axes: a number along one of them, 1 along the other."""
    return [number, 1] if axis == 0 else [1, number]


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
        channels, *strides = weight.shape[1:]
        steps = [_step(length, self.longest) or 1 for length in strides]
        counts = [length // step for length, step in zip(strides, steps, strict=True)]
        behind = _into_channels(weight, counts, steps)
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


def _into_channels(weight: np.ndarray, counts: list[int], steps: list[int]) -> np.ndarray:
    """Weights for windows of so many cells as weights for channels, one for each pixel of a cell."""
    outputs, channels = weight.shape[:2]
    cut = weight.reshape(outputs, channels, counts[0], steps[0], counts[1], steps[1])
    return cut.transpose(0, 1, 3, 5, 2, 4).reshape(outputs, channels * steps[0] * steps[1], *counts)


def _moving(channels: int, steps: list[int], dtype: np.dtype) -> np.ndarray:
    """Weights of a convolution by channel whose outputs are the pixels of a cell, each as it is."""
    size = steps[0] * steps[1]
    return np.tile(np.eye(size, dtype=dtype).reshape(size, 1, *steps), (channels, 1, 1, 1))
