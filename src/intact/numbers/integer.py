"""The arithmetic of quantized operators in plain numpy, as the ONNX specification and integer kernels have it.

It is the reference that rewrites are proved against, and what a rule asks that wants to know a result beforehand.
A requantization is `m = float32(float32(x_scale · w_scale) / y_scale)` and then
`y = saturate(round_half_even(float32(accumulator) · m) + zero_point)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, DTypeLike

from intact.numbers import encoding
from intact.numbers.encoding import Encoding, along
from intact.numbers.integer_types import limits

INT16_MAX, UINT8_MAX = limits("int16")[1], limits("uint8")[1]


def saturate(levels: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Whole numbers, cut to the range of an integer type."""
    low, high = limits(np.dtype(dtype).name)
    return np.asarray(np.clip(levels, low, high).astype(np.int64).astype(dtype))


def quantize_linear(
    x: np.ndarray, scale: ArrayLike, zero_point: np.ndarray, *, axis: int = 1, block_size: int = 0
) -> np.ndarray:
    """QuantizeLinear: saturate(round_half_even(x / scale) + zero_point), in the type of the zero point."""
    grid = _grid(scale, zero_point, axis, block_size, zero_point.dtype)
    return encoding.quantize(x, grid).astype(zero_point.dtype)


def dequantize_linear(
    q: np.ndarray, scale: ArrayLike, zero_point: np.ndarray | None = None, *, axis: int = 1, block_size: int = 0
) -> np.ndarray:
    """DequantizeLinear: (q − zero_point) · scale in float32."""
    zeros = np.zeros(np.shape(scale), np.int64) if zero_point is None else zero_point
    return encoding.dequantize(q, _grid(scale, zeros, axis, block_size, q.dtype))


def _grid(scale: ArrayLike, zero_point: np.ndarray, axis: int, block_size: int, dtype: DTypeLike) -> Encoding:
    both = np.asarray(scale, np.float32), zero_point.astype(np.int64)
    scales, zeros = np.broadcast_arrays(*(values.reshape(()) if values.size == 1 else values for values in both))
    return Encoding(np.dtype(dtype).name, scales, zeros, axis, block_size)


def requantize(accumulator: np.ndarray, multiplier: ArrayLike, zero_point: np.ndarray) -> np.ndarray:
    """Integers from int32 accumulators: saturate(round_half_even(float32(acc) · multiplier) + zero_point)."""
    scaled = accumulator.astype(np.float32) * np.asarray(multiplier, np.float32)
    return saturate(np.rint(scaled).astype(np.float64) + zero_point.astype(np.int64), zero_point.dtype)


def multiplier(x_scale: ArrayLike, w_scale: ArrayLike, y_scale: ArrayLike) -> np.ndarray:
    """The factor from an accumulator to the grid of the output, rounded to float32 twice as kernels do."""
    product = np.asarray(x_scale, np.float32) * np.asarray(w_scale, np.float32)
    return np.asarray(product / np.asarray(y_scale, np.float32), np.float32)


class ConvAttributes(TypedDict, total=False):
    """The attributes of a convolution, with the defaults of ONNX."""

    group: int
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    auto_pad: str


def conv_integer(
    x: np.ndarray,
    w: np.ndarray,
    x_zero_point: ArrayLike = 0,
    w_zero_point: ArrayLike = 0,
    bias: np.ndarray | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> np.ndarray:
    """ConvInteger, with a bias: Σ (x − x_zero_point)·(w − w_zero_point) in int32, in any number of dimensions.

    Padding is x = x_zero_point. The weight has one zero point, or one for each output channel.
    """
    spatial = w.ndim - 2
    steps, spread = tuple(strides) or (1,) * spatial, tuple(dilations) or (1,) * spatial
    around = paddings(x.shape[2:], w.shape[2:], steps, spread, pads, auto_pad)
    centred = np.pad(x.astype(np.int64) - int(np.asarray(x_zero_point).reshape(())), [(0, 0), (0, 0), *around])
    channels = along(np.asarray(w_zero_point).astype(np.int64), w.shape, axis=0)
    result = convolve(centred, w.astype(np.int64) - channels, group, steps, spread)
    if bias is not None:
        result += bias.astype(np.int64).reshape(-1, *(1,) * spatial)
    return result.astype(np.int32)


def qlinear_conv(
    x: np.ndarray,
    x_scale: ArrayLike,
    x_zero_point: ArrayLike,
    w: np.ndarray,
    w_scale: ArrayLike,
    w_zero_point: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: np.ndarray,
    bias: np.ndarray | None = None,
    **attributes: Unpack[ConvAttributes],
) -> np.ndarray:
    """QLinearConv: the integer convolution, requantized to the grid of the output."""
    accumulator = conv_integer(x, w, x_zero_point, w_zero_point, bias, **attributes)
    factor = along(multiplier(x_scale, w_scale, y_scale).reshape(-1), accumulator.shape, axis=1)
    return requantize(accumulator, factor, np.reshape(y_zero_point, ()))


def matmul_integer(
    a: np.ndarray, b: np.ndarray, a_zero_point: ArrayLike = 0, b_zero_point: ArrayLike = 0
) -> np.ndarray:
    """MatMulInteger: (a − a_zero_point) @ (b − b_zero_point) in int32; zero points per row of a, per column of b."""
    left = a.astype(np.int64) - _per_row(np.asarray(a_zero_point).astype(np.int64))
    return np.asarray(np.matmul(left, b.astype(np.int64) - np.asarray(b_zero_point).astype(np.int64))).astype(np.int32)


def qlinear_matmul(
    a: np.ndarray,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike,
    b: np.ndarray,
    b_scale: ArrayLike,
    b_zero_point: ArrayLike,
    y_scale: ArrayLike,
    y_zero_point: np.ndarray,
) -> np.ndarray:
    """QLinearMatMul: the integer product, requantized to the grid of the output."""
    accumulator = matmul_integer(a, b, a_zero_point, b_zero_point)
    factor = multiplier(_per_row(np.asarray(a_scale, np.float32)), b_scale, y_scale)
    return requantize(accumulator, factor, np.reshape(y_zero_point, ()))


def qgemm(
    a: np.ndarray,
    a_scale: ArrayLike,
    a_zero_point: ArrayLike,
    b: np.ndarray,
    b_scale: ArrayLike,
    b_zero_point: ArrayLike,
    c: np.ndarray | None = None,
    y_scale: ArrayLike | None = None,
    y_zero_point: np.ndarray | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> np.ndarray:
    """QGemm: the integer product and an int32 bias, requantized, or float32 where there is no grid for the output."""
    left, right = a.T if transA else a, b.T if transB else b
    accumulator = matmul_integer(left, right, a_zero_point, b_zero_point) + np.asarray(0 if c is None else c, np.int32)
    scale = np.float32(alpha) * np.asarray(a_scale, np.float32) * np.asarray(b_scale, np.float32)
    if y_scale is None:
        return np.asarray(accumulator.astype(np.float32) * scale)
    assert y_zero_point is not None, "a scale of the output comes with its zero point"
    return requantize(accumulator, scale / np.asarray(y_scale, np.float32), np.reshape(y_zero_point, ()))


def qlinear_add(
    a: np.ndarray,
    a_scale: ArrayLike,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: ArrayLike,
    b_zero_point: np.ndarray,
    c_scale: ArrayLike,
    c_zero_point: np.ndarray,
) -> np.ndarray:
    """QLinearAdd as kernels have it: round(a·ra + (b·rb + c_zero_point − (za·ra + zb·rb))), with ra = a_scale/c_scale.

    Each multiplication is fused with the addition that follows it, and the zero point is added before rounding.
    """
    ra, rb = (np.asarray(scale, np.float32) / np.asarray(c_scale, np.float32) for scale in (a_scale, b_scale))
    shift = np.float32(c_zero_point) - (ra * np.float32(a_zero_point) + rb * np.float32(b_zero_point))
    return saturate(np.rint(_fused(a, ra, _fused(b, rb, shift))), c_zero_point.dtype)


def qlinear_mul(
    a: np.ndarray,
    a_scale: ArrayLike,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: ArrayLike,
    b_zero_point: np.ndarray,
    c_scale: ArrayLike,
    c_zero_point: np.ndarray,
) -> np.ndarray:
    """QLinearMul as kernels have it: round((a − za)·(b − zb)·m + c_zero_point) in float32."""
    product = (a.astype(np.int64) - np.int64(a_zero_point)) * (b.astype(np.int64) - np.int64(b_zero_point))
    factor = multiplier(a_scale, b_scale, c_scale).reshape(())
    return saturate(np.rint(product.astype(np.float32) * factor + np.float32(c_zero_point)), c_zero_point.dtype)


def paddings(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> list[tuple[int, int]]:
    """The numbers of elements that a convolution or a pooling adds before and after each spatial dimension."""
    count = len(kernel)
    if auto_pad == "NOTSET":
        given = tuple(pads) or (0,) * 2 * count
        return list(zip(given[:count], given[count:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * count
    result = []
    for length, width, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        missing = max(0, (-(-length // stride) - 1) * stride + (width - 1) * dilation + 1 - length)
        small, large = missing // 2, missing - missing // 2
        result.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return result


def windows(x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> np.ndarray:
    """Every window that a kernel sees of (N, C, …): an array (N, C, *positions, *kernel)."""
    count = len(kernel)
    extent = [(width - 1) * dilation + 1 for width, dilation in zip(kernel, dilations, strict=True)]
    seen = sliding_window_view(x, extent, axis=tuple(range(2, 2 + count)))
    positions = tuple(slice(None, None, stride) for stride in strides)
    inside = tuple(slice(None, None, dilation) for dilation in dilations)
    return np.asarray(seen[(slice(None), slice(None), *positions, *inside)])


def convolve(x: np.ndarray, w: np.ndarray, group: int, strides: Sequence[int], dilations: Sequence[int]) -> np.ndarray:
    """The sums of products of a convolution without padding, whatever the element type."""
    seen = windows(x, w.shape[2:], strides, dilations)
    batch, channels, *rest = seen.shape
    positions = rest[: w.ndim - 2]
    # (N, group, positions, C/group · kernel) @ (group, C/group · kernel, M/group)
    columns = np.moveaxis(seen.reshape(batch, group, channels // group, *rest), 2, 2 + len(positions))
    columns = columns.reshape(batch, group, int(np.prod(positions)), -1)
    kernels = w.reshape(group, w.shape[0] // group, -1).swapaxes(1, 2)
    return np.asarray(np.matmul(columns, kernels).swapaxes(2, 3).reshape(batch, w.shape[0], *positions))


def _per_row(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 and values.size > 1 else values


def _fused(x: np.ndarray, factor: ArrayLike, addend: ArrayLike) -> np.ndarray:
    """x · factor + addend in float32 with one rounding; the product of two float32 is exact in float64."""
    return np.asarray(
        (x.astype(np.float64) * np.asarray(factor, np.float64) + np.asarray(addend, np.float64)).astype(np.float32)
    )


def largest_pair(weight: np.ndarray, channel_axis: int) -> int:
    """The greatest |255·w₁ + 255·w₂| of two weights of one output channel, in whatever order kernels pair them."""
    rows = np.moveaxis(weight, channel_axis, 0).reshape(weight.shape[channel_axis], -1)
    if rows.shape[1] < 2:
        return int(np.abs(rows.astype(np.int64)).max(initial=0)) * UINT8_MAX
    most = sum(found.astype(np.int64).clip(min=0) for found in _two_greatest(rows.T))
    # ~x turns the order round, and unlike -x has room for the least integer.
    least = sum((~found).astype(np.int64).clip(max=0) for found in _two_greatest(~rows.T))
    return int(max(np.max(most), -np.min(least))) * UINT8_MAX


def _two_greatest(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The greatest integer of each column and the next, which is the same where two are equal.

    Halves are held against halves in the type that the weights have: sorting takes ten times as long.
    """
    none = np.array(np.iinfo(columns.dtype).min, columns.dtype)
    first, second = columns, np.broadcast_to(none, columns.shape)
    while len(first) > 1:
        half = len(first) // 2
        (one, other), (low, lower) = ((part[:half], part[half : 2 * half]) for part in (first, second))
        greater, less = np.maximum(one, other), np.maximum(np.minimum(one, other), np.maximum(low, lower))
        rest = slice(2 * half, None)
        odd = len(first) % 2
        first = np.concatenate([greater, first[rest]]) if odd else greater
        second = np.concatenate([less, second[rest]]) if odd else less
    return first[0], second[0]
