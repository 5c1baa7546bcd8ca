"""The arithmetic of grids: from a range to an encoding, from values to integers and back."""

from __future__ import annotations

import numpy as np

from intact.results import Encoding

LIMITS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "int2": (-2, 1),
    "int32": (-(2**31), 2**31 - 1),
}
# The least scale. Products of two of them are still normal float32 numbers, so that no bias scale is denormal.
LEAST_SCALE = 1e-18


def encode(
    low: np.ndarray | float,
    high: np.ndarray | float,
    dtype: str,
    *,
    symmetric: bool,
    axis: int | None = None,
    block_size: int = 0,
) -> Encoding:
    """The grid of `dtype` that covers [low, high] and holds zero exactly; arrays give one scale per element."""
    low = np.minimum(np.asarray(low, np.float64), 0.0)
    high = np.maximum(np.asarray(high, np.float64), 0.0)
    scale, zero_point = _symmetric(low, high, dtype) if symmetric else _asymmetric(low, high, dtype)
    return Encoding(dtype, scale, zero_point, axis, block_size)


def _symmetric(low: np.ndarray, high: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    qmin, qmax = LIMITS[dtype]
    middle = (qmin + qmax + 1) // 2
    reach = np.maximum(-low, high)
    # A two-bit grid has no room for a value and its negative: it uses its one more negative step.
    steps = qmax - middle if qmax - middle > 1 else middle - qmin
    return _scale(reach, steps), np.full(reach.shape, middle, np.int64)


def _asymmetric(low: np.ndarray, high: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    qmin, qmax = LIMITS[dtype]
    scale = _scale(high - low, qmax - qmin)
    zero_point = np.rint(qmin - low / scale.astype(np.float64))
    return scale, np.clip(zero_point, qmin, qmax).astype(np.int64)


def _scale(reach: np.ndarray, steps: int) -> np.ndarray:
    """float32 scales; where nothing but zero was seen any scale is right, and 1 is the plainest."""
    scale = np.where(reach > 0, reach / steps, 1.0)
    return np.clip(scale, LEAST_SCALE, np.finfo(np.float32).max).astype(np.float32)


def along(values: np.ndarray, rank: int, axis: int | None) -> np.ndarray:
    """Per-channel `values` shaped to broadcast along `axis` of a tensor of this rank."""
    if axis is None:
        return values.reshape(())
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def quantize(values: np.ndarray, encoding: Encoding) -> np.ndarray:
    """`values` as integers of the grid, rounded half to even and saturated; int64, whatever the grid's type."""
    return _levels(values, encoding).astype(np.int64)


def stored(values: np.ndarray, encoding: Encoding) -> np.ndarray:
    """`values` as integers of the grid, in the narrowest type of numpy that holds them all."""
    qmin, qmax = LIMITS[encoding.dtype]
    return _levels(values, encoding).astype(np.min_scalar_type(qmin if qmin < 0 else qmax))


def _levels(values: np.ndarray, encoding: Encoding) -> np.ndarray:
    """Whole numbers in float64; each step is written over the one before, because new memory takes longest."""
    qmin, qmax = LIMITS[encoding.dtype]
    scale = along(encoding.scale, values.ndim, encoding.axis).astype(np.float64)
    levels = np.empty(values.shape, np.float64)
    np.divide(values, scale, out=levels)
    np.rint(levels, out=levels)
    levels += along(encoding.zero_point, values.ndim, encoding.axis)
    np.clip(levels, qmin, qmax, out=levels)
    return levels


def dequantize(integers: np.ndarray, encoding: Encoding) -> np.ndarray:
    """The real values, as float64, of integers of the grid."""
    scale = along(encoding.scale, integers.ndim, encoding.axis).astype(np.float64)
    values: np.ndarray = (integers - along(encoding.zero_point, integers.ndim, encoding.axis)) * scale
    return values
