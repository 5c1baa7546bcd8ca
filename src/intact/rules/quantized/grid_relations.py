"""Grids of Q and DQ nodes compared with each other: equal, covering, finer; each question answered with a reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers import encoding
from intact.numbers.encoding import Encoding
from intact.rules.quantized.operand import INT8, UINT8, Operand, type_name

# A step of the intermediate grid that is no larger than this many steps of the output moves a value by one at most.
LARGEST_RATIO = 2.0

# What two quotients and two products in float32 may err by, in steps of a result for each level that it is from zero.
FLOAT_SLACK = 2.0**-21

# Scales between these come back from float32 as they went: no product of theirs with 17 bits leaves its range.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**100


def different(a: Operand, b: Operand) -> str | None:
    """Refuse two operands that are not on one grid."""
    if a.dtype != b.dtype:
        return f"the types differ ({_name(a)} and {_name(b)})"
    if not _same(a.scale, b.scale):
        return f"the scales differ ({_numbers(a.scale)} and {_numbers(b.scale)})"
    if a.zero_point is not b.zero_point and not _same_zeros(a, b):
        return f"the zero points differ ({_zeros(a).tolist()[:3]} and {_zeros(b).tolist()[:3]})"
    if not query.is_scalar(a.scale) and (a.axis, a.block_size) != (b.axis, b.block_size):
        return f"the axes of the scales differ ({a.axis} and {b.axis})"
    return None


def not_one_grid(**operands: Operand) -> str | None:
    """Refuse operands, given by name, that are not on a constant grid with a single positive scale in float32."""
    for name, operand in operands.items():
        step = operand.step
        if step is None or operand.scale is None:
            return f"{name} has {_size(operand.scale)}, not one constant scale"
        if operand.scale.dtype != ir.DataType.FLOAT:
            return f"the scale of {name} is {type_name(operand.scale.dtype)}: integer kernels take float32"
        if not 0 < step < np.inf:
            return f"the scale of {name} is {step}"
        if operand.zero_point is not None and query.scalar(operand.zero_point) is None:
            return f"{name} has {_size(operand.zero_point)}, not one constant zero point"
    return None


def not_one_type(**operands: Operand) -> str | None:
    """Refuse operands, given by name, that are not of one 8-bit type."""
    first = next(iter(operands.values()))
    for name, operand in operands.items():
        if operand.dtype not in (UINT8, INT8):
            return f"{name} is {type_name(operand.dtype)}: integer kernels take uint8 and int8"
        if operand.dtype != first.dtype:
            return f"{name} is {type_name(operand.dtype)}, unlike {next(iter(operands))}: kernels want one type"
    return None


def unusable(operand: Operand) -> str | None:
    """Refuse a grid on which Q(DQ(q)) may not be q: a scale that is computed, or that float32 loses by its size."""
    scales = query.constant(operand.scale)
    if scales is None or not (operand.zero_point is None or query.is_constant(operand.zero_point)):
        return "scale or zero point is computed, not constant"
    if operand.dtype is None or not operand.dtype.is_integer():
        return f"the type is {_name(operand)}, not an integer"
    if scales.dtype != np.float32:
        return f"the scale is {scales.dtype}, not float32"
    least, greatest = (scales.item(),) * 2 if scales.size == 1 else (scales.min(), scales.max())
    # Written so that NaN is refused as well.
    if not (least >= SMALLEST_SCALE and greatest <= LARGEST_SCALE):
        return f"the scale {_numbers(operand.scale)} is not between {SMALLEST_SCALE:.2g} and {LARGEST_SCALE:.2g}"
    return None


def not_covered(middle: Operand, result: Operand) -> str | None:
    """Refuse a grid `middle` that may round a value more than one step of `result` away.

    Rounding to `middle` moves a value by half a step of it, and cutting it off there shows only where `result`
    has levels beyond. Both have one scale. Where one is exactly twice the other, every level of `middle` is one of
    `result`, and half a step is a whole one; elsewhere a whole step may be two once floats are rounded.
    """
    s, t = middle.known_step, result.known_step
    if s > LARGEST_RATIO * t:
        return f"the intermediate scale {s:.6g} is more than {LARGEST_RATIO:g} times the output scale {t:.6g}"
    if s != LARGEST_RATIO * t and s / LARGEST_RATIO / t + result.reach * FLOAT_SLACK >= 1:
        return (
            f"the intermediate scale is {s / t:.9g} times the output scale: close enough to 2 for a value to move by 2"
        )
    (low, high), (least, greatest) = extent(middle), extent(result)
    if low > least + t or high < greatest - t:
        return (
            f"the intermediate grid covers {low:.6g} to {high:.6g}, "
            f"but values of the output reach {least:.6g} to {greatest:.6g}"
        )
    return None


def extent(operand: Operand) -> tuple[float, float]:
    """The least and the greatest value that a grid with one scale can hold."""
    step, zero, (least, greatest) = operand.known_step, operand.zero, operand.limits
    return (least - zero) * step, (greatest - zero) * step


def every_level(operand: Operand) -> np.ndarray:
    """Every integer of the type."""
    low, high = operand.limits
    return np.arange(low, high + 1).astype(operand.known_dtype.numpy())


def dequantize(q: np.ndarray, grid: Operand) -> np.ndarray:
    """The floats that a DQ node with one scale makes of integers."""
    return encoding.dequantize(q, _encoding(grid))


def quantize(x: np.ndarray, grid: Operand) -> np.ndarray:
    """The integers that a Q node with one scale makes of floats."""
    return encoding.quantize(x, _encoding(grid)).astype(grid.known_dtype.numpy())


def _encoding(operand: Operand) -> Encoding:
    """The grid of an operand with one scale."""
    return Encoding(operand.known_dtype.name.lower(), np.array(operand.known_step, np.float32), np.array(operand.zero))


def _same(left: ir.Value | None, right: ir.Value | None) -> bool:
    return left is right or query.same_constant(left, right)


def _same_zeros(a: Operand, b: Operand) -> bool:
    one, other = query.scalar(a.zero_point), query.scalar(b.zero_point)
    if one is not None and other is not None:
        return one == other
    return np.array_equal(_zeros(a), _zeros(b))


def _zeros(operand: Operand) -> np.ndarray:
    zeros = operand.zeros()
    return zeros[:1] if (zeros == zeros[0]).all() else zeros


def _name(operand: Operand) -> str:
    return "unknown" if operand.dtype is None else operand.dtype.name.lower()


def _numbers(value: ir.Value | None) -> str:
    array = query.constant(value)
    if array is None:
        return "computed"
    shown = ", ".join(f"{number:.6g}" for number in array.reshape(-1)[:3].tolist())
    return shown if array.size <= 3 else f"{shown}, …"


def _size(value: ir.Value | None) -> str:
    array = query.constant(value)
    return "a computed number" if array is None else f"{array.size} numbers"
