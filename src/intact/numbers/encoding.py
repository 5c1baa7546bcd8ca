"""Grids: what one is, how a range becomes one, and the only place where values are rounded to one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from intact.numbers.integer_types import limits, middle
from intact.records import dataclass

# The least scale. Products of two of them are still normal float32 numbers, so that no bias scale is denormal.
LEAST_SCALE = 1e-18


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """An affine grid: real = (q - zero_point) * scale.

    One zero point per scale; more than one scale only along `axis`, or in blocks of `block_size` along it.
    """

    dtype: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None
    block_size: int = 0

    def __post_init__(self) -> None:
        assert self.scale.shape == self.zero_point.shape, "one zero point per scale"
        assert self.axis is not None or self.scale.size == 1, "several scales need an axis"

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer of the type."""
        return limits(self.dtype)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the greatest real value that the grid has, for each scale, in float64."""
        least, greatest = (limit - self.zero_point.astype(np.float64) for limit in self.limits)
        return np.asarray(least * self.scale), np.asarray(greatest * self.scale)

    def parameters(self, shape: Sequence[int], precision: DTypeLike = np.float32) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points as floats, in shapes that broadcast against a tensor of `shape`."""
        both = (along(values, shape, self.axis, self.block_size) for values in (self.scale, self.zero_point))
        scale, zero_point = (values.astype(precision) for values in both)
        return scale, zero_point

    def same_grid(self, other: Encoding) -> bool:
        """True if both describe the very same grid, bit for bit."""
        return (
            (self.dtype, self.axis, self.block_size) == (other.dtype, other.axis, other.block_size)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


def encode(
    low: ArrayLike,
    high: ArrayLike,
    dtype: str,
    *,
    symmetric: bool,
    axis: int | None = None,
) -> Encoding:
    """The grid of `dtype` that covers [low, high] and holds zero exactly; arrays give one scale per element."""
    low = np.minimum(np.asarray(low, np.float64), 0.0)
    high = np.maximum(np.asarray(high, np.float64), 0.0)
    scale, zero_point = _symmetric(low, high, dtype) if symmetric else _asymmetric(low, high, dtype)
    return Encoding(dtype, scale, zero_point, axis)


def _symmetric(low: np.ndarray, high: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    (least, greatest), zero = limits(dtype), middle(dtype)
    reach = np.maximum(-low, high)
    # A two-bit grid has no room for a value and its negative: it uses its one more negative step.
    steps = greatest - zero if greatest - zero > 1 else zero - least
    return _scale(reach, steps), np.full(reach.shape, zero, np.int64)


def _asymmetric(low: np.ndarray, high: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    least, greatest = limits(dtype)
    scale = _scale(high - low, greatest - least)
    zero_point = np.rint(least - low / scale.astype(np.float64))
    return scale, np.clip(zero_point, least, greatest).astype(np.int64)


def _scale(reach: np.ndarray, steps: int) -> np.ndarray:
    """float32 scales; where nothing but zero was seen any scale is right, and 1 is the plainest."""
    scale = np.where(reach > 0, reach / steps, 1.0)
    return np.clip(scale, LEAST_SCALE, np.finfo(np.float32).max).astype(np.float32)


def along(values: np.ndarray, shape: Sequence[int], axis: int | None, block_size: int = 0) -> np.ndarray:
    """Scales or zero points in a shape that broadcasts against a tensor: one, one per index of `axis`, or blocks."""
    if values.size == 1:
        return values.reshape(())
    assert axis is not None, "several scales need an axis"
    if block_size:
        repeated = np.repeat(values, block_size, axis)
        return np.take(repeated, range(shape[axis]), axis)
    return values.reshape([-1 if index == axis % len(shape) else 1 for index in range(len(shape))])


def to_levels(values: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | int, dtype: str) -> np.ndarray:
    """saturate(round_half_even(values / scale) + zero_point): whole numbers in the float type of values and scale.

    Every value that is put on a grid comes through here. The type of the quotient matters: where it lies close to
    the middle between two levels, float32 and float64 may round it to different ones.
    """
    # Each step is written over the one before, because new memory takes longest.
    levels = np.asarray(np.divide(values, scale))
    np.rint(levels, out=levels)
    levels += np.asarray(zero_point, levels.dtype)
    least, greatest = limits(dtype)
    np.maximum(levels, least, out=levels)
    np.minimum(levels, greatest, out=levels)
    return levels


def quantize(values: np.ndarray, encoding: Encoding, *, precision: DTypeLike = np.float32) -> np.ndarray:
    """`values` as integers of the grid, in the narrowest type of numpy that holds the type of the grid.

    float32 finds the integers that ONNX Runtime's QuantizeLinear finds, so it is for whatever a model quantizes as it
    runs. float64 is for constants, which are rounded once and for all: it finds the nearest level, and holds int32.
    """
    assert encoding.dtype != "int32" or np.dtype(precision) == np.float64, "int32 needs float64: float32 has 24 bits"
    scale, zero_point = encoding.parameters(values.shape, precision)
    with np.errstate(over="ignore"):
        levels = to_levels(values.astype(precision, copy=False), scale, zero_point, encoding.dtype)
    return levels.astype(narrowest(encoding.dtype))


def narrowest(dtype: str) -> np.dtype:
    """The narrowest type of numpy that holds all integers of a type."""
    least, greatest = limits(dtype)
    return np.min_scalar_type(least if least < 0 else greatest)


def dequantize(integers: np.ndarray, encoding: Encoding, *, precision: DTypeLike = np.float32) -> np.ndarray:
    """The real values of integers of the grid, in float32 as DequantizeLinear computes them, or in float64."""
    scale = along(encoding.scale, integers.shape, encoding.axis, encoding.block_size).astype(precision)
    zeros = along(encoding.zero_point, integers.shape, encoding.axis, encoding.block_size).astype(np.int64)
    return np.asarray((integers.astype(np.int64) - zeros).astype(precision) * scale)


def round_to_grid(values: np.ndarray, written: Encoding, read: Encoding | None = None) -> np.ndarray:
    """float32 values as a Q and a DQ leave them; the DQ may read another grid. What is no number stays none."""
    with np.errstate(over="ignore", invalid="ignore"):
        levels = to_levels(values.astype(np.float32, copy=False), *written.parameters(values.shape), written.dtype)
        scale, zero_point = (read or written).parameters(values.shape)
        return np.asarray((levels - zero_point) * scale)
