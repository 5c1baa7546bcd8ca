"""The common part of Conv, MatMul and Gemm on integers: a weight on its own grid, an accumulator, a bias."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.model import query
from intact.numbers.integer_types import BYTE_STEPS, FLOAT32_LEVELS, INT32_MAX
from intact.rules.quantized.grid_relations import not_one_grid, not_one_type
from intact.rules.quantized.operand import INT8, UINT8, Operand, dq_operand, type_name


def step(x: Operand, w: Operand) -> np.ndarray:
    """The step of the accumulator, one or one for each channel, rounded to float32 as kernels do."""
    return np.asarray(x.scales()[0] * w.scales())


def not_a_weight(x: Operand, w: Operand, channel_axis: int) -> str | None:
    """Refuse a weight `w`, its output channels along `channel_axis`, that no kernel multiplies `x` by."""
    if w.dtype not in (UINT8, INT8):
        return f"the weight is {type_name(w.dtype)}: integer kernels take uint8 and int8"
    if (x.dtype, w.dtype) == (INT8, UINT8):
        return "no kernel multiplies int8 activations by uint8 weights"
    if w.block_size:
        return "the weight is quantized in blocks"
    scales = query.constant(w.scale)
    if scales is None or (w.zero_point is not None and not query.is_constant(w.zero_point)):
        return "the grid of the weight is computed, not constant"
    if not ((scales > 0) & np.isfinite(scales)).all():
        return "a scale of the weight is not a positive number"
    return _not_along(w, scales.size, channel_axis) or overflow(x, w, channel_axis)


def not_on_integers(x: Operand, w: Operand, channel_axis: int, y: Operand | None = None) -> str | None:
    """Refuse a product of `x` and the weight `w` that no integer kernel takes; without `y` the result is float."""
    grids = {"input": x} if y is None else {"input": x, "output": y}
    return not_one_type(**grids) or not_one_grid(**grids) or not_a_weight(x, w, channel_axis)


def not_a_product(x: Operand, w: Operand, channel_axis: int, y: Operand | None = None) -> str | None:
    """Refuse the same, and one whose floats between DQ and Q are not within a step of `y`."""
    doubt = not_on_integers(x, w, channel_axis, y)
    return doubt if doubt is not None or y is None else lost_in_float(x, w, channel_axis, y)


def _not_along(w: Operand, count: int, channel_axis: int) -> str | None:
    if count == 1:
        return None
    rank, shape = query.rank(w.q), query.static_shape(w.q)
    if rank is None or shape is None:
        return "the weight has one scale for each channel, and its shape is unknown"
    if w.axis % rank != channel_axis % rank:
        return f"the weight has one scale for each index of axis {w.axis % rank}, not of axis {channel_axis % rank}"
    channels = shape[channel_axis]
    return None if count == channels else f"the weight has {count} scales for {channels} channels"


def overflow(x: Operand, w: Operand, channel_axis: int, levels: np.ndarray | None = None) -> str | None:
    """Refuse sums of x·w and a bias of `levels` that int32 may not hold; a computed weight is taken at its worst."""
    shape = query.static_shape(w.q)
    if shape is None:
        return "the shape of the weight is unknown"
    bias = 0 if levels is None else int(np.abs(levels).max(initial=0))
    terms = math.prod(shape) // max(shape[channel_axis], 1)
    if terms * BYTE_STEPS * x.reach + bias <= INT32_MAX:
        return None
    if not query.is_constant(w.q):
        return f"accumulators of {terms} computed terms may be more than int32 holds"
    largest = int(channel_sums(w, channel_axis).max(initial=0)) * x.reach + bias
    return None if largest <= INT32_MAX else f"accumulators may reach {largest}, more than int32 holds"


def lost_in_float(x: Operand, w: Operand, channel_axis: int, y: Operand, factor: float = 1.0) -> str | None:
    """Refuse sums that float32 between DQ and Q may have a step of `y` off: times `factor` they reach too many."""
    shape = query.static_shape(w.q)
    if shape is None or y.step is None or x.step is None or not query.is_constant(w.scale):
        return None
    steps = step(x, w).astype(np.float64) * factor / y.step
    terms = math.prod(shape) // max(shape[channel_axis], 1)
    if terms * BYTE_STEPS * x.reach * steps.max() <= FLOAT32_LEVELS or not query.is_constant(w.q):
        return None
    largest = float((channel_sums(w, channel_axis) * steps).max()) * x.reach
    if largest <= FLOAT32_LEVELS:
        return None
    return f"sums reach {largest:.6g} steps of the output, and float32 between DQ and Q tells {FLOAT32_LEVELS} apart"


def added_in_float(y: Operand, *operands: Operand) -> str | None:
    """Refuse operands whose sum may lose a step of `y`: float32 rounds each of them, and the sum."""
    if y.step is None or any(operand.step is None for operand in operands):
        return None
    largest = sum(map(extent, operands)) / y.step
    if largest <= FLOAT32_LEVELS / 16:
        return None
    return f"operands reach {largest:.6g} steps of the output, and float32 loses some beyond {FLOAT32_LEVELS // 16}"


def beyond_int32(y: Operand, largest: float) -> str | None:
    """Refuse results that kernels turn around: they convert its steps of `y` to int32 before they cut it."""
    if y.step is None or largest <= INT32_MAX * y.step:
        return None
    return f"results reach {largest / y.step:.6g} steps of the output, more than kernels hold in int32"


def extent(operand: Operand) -> float:
    """The largest value that an operand with one constant scale can have."""
    return operand.reach * (operand.step or 0.0)


def saturates(x: Operand, w: Operand, channel_axis: int, grid: Operand) -> str | None:
    """Refuse a grid that may cut a product off: it does not hold every sum that the integers of `x` can give."""
    centred = w.centred()
    ends = [limit - x.zero for limit in x.limits]
    others = tuple(index for index in range(centred.ndim) if index != channel_axis % centred.ndim)
    low, high = (
        pick(centred * ends[0], centred * ends[1]).sum(axis=others) * step(x, w) for pick in (np.minimum, np.maximum)
    )
    least, greatest = (limit - grid.zero for limit in grid.limits)
    if (low >= (least - 0.5) * grid.known_step).all() and (high <= (greatest + 0.5) * grid.known_step).all():
        return None
    return (
        f"products reach {low.min():.6g} to {high.max():.6g}, "
        f"but the intermediate grid covers {least * grid.known_step:.6g} to {greatest * grid.known_step:.6g}"
    )


def not_a_matrix(right: Operand) -> str | None:
    """Refuse a second operand of a MatMul that kernels do not take: several scales need a matrix."""
    scales, rank = query.constant(right.scale), query.rank(right.q)
    if scales is None or scales.size == 1 or rank == 2:
        return None
    return f"one scale for each column needs a matrix, and the second operand has rank {rank}"


def not_a_constant_matrix(right: Operand) -> str | None:
    """Refuse a second operand that is not a weight of rows and columns."""
    if query.is_constant(right.q) and query.rank(right.q) == 2:
        return None
    return "the second operand is not a constant matrix"


def like(scale: ir.Value | None, values: np.ndarray) -> np.ndarray:
    """Flat values in the shape of a constant scale."""
    array = query.known_constant(scale)
    return values.reshape(array.shape).astype(np.float32)


def gemm_axis(gemm: ir.Node) -> int:
    """The axis of a Gemm's weight that holds its columns."""
    return 0 if query.int_(gemm, "transB", 0) else 1


def channel_sums(w: Operand, channel_axis: int) -> np.ndarray:
    """Σ |w - zero_point| of each output channel of a constant weight."""
    centred = np.abs(w.centred())
    others = tuple(index for index in range(centred.ndim) if index != channel_axis % centred.ndim)
    return np.asarray(centred.sum(axis=others))


def bias_levels(bias: ir.Value, steps: np.ndarray, channels: int) -> np.ndarray | str:
    """A constant bias, float or behind a DequantizeLinear, in `steps` of the accumulator; text says why it has none."""
    stored = _stored_levels(bias, steps)
    if stored is not None and stored.shape == (channels,):
        return stored
    real = _real_bias(bias)
    return "the bias is computed, not constant" if real is None else levels_of(real, steps, channels)


def known_levels(bias: ir.Value, steps: np.ndarray, w: Operand, channel_axis: int) -> np.ndarray:
    """The same for a bias that was found to have levels before."""
    levels = bias_levels(bias, steps, query.known_shape(w.q)[channel_axis])
    assert not isinstance(levels, str), f"the bias was taken for constant: {levels}"
    return levels


def _stored_levels(bias: ir.Value, steps: np.ndarray) -> np.ndarray | None:
    """A bias that was quantized in `steps` of the accumulator, as it is stored."""
    producer = bias.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return None
    operand = dq_operand(producer)
    levels, scales = query.constant(operand.q), query.constant(operand.scale)
    if operand.zero_point is not None or operand.block_size or levels is None or scales is None:
        return None
    scales = scales.reshape(-1)
    return levels.astype(np.float64) if scales.size == steps.size and (scales == steps).all() else None


def levels_of(real: np.ndarray, steps: np.ndarray, channels: int) -> np.ndarray | str:
    """Real numbers, one or one for each channel, in `steps` of the accumulator; text says why they have no place."""
    if real.size not in (1, channels) or (real.size > 1 and real.shape[-1] != channels):
        return f"the bias has shape {list(real.shape)}, not one number for each of {channels} channels"
    levels = np.broadcast_to(real.astype(np.float64).reshape(-1), (channels,)) / steps.astype(np.float64)
    # Written so that NaN is refused as well.
    if not (np.abs(levels) <= INT32_MAX).all():
        return f"the bias is up to {np.abs(levels).max():.6g} steps of the accumulator, more than int32 holds"
    return np.asarray(levels)


def _real_bias(bias: ir.Value) -> np.ndarray | None:
    producer = bias.producer()
    if query.is_constant(bias):
        return query.constant(bias)
    if producer is not None and producer.op_type == "DequantizeLinear":
        return dequantized_constant(dq_operand(producer))
    return None


def dequantized_constant(operand: Operand) -> np.ndarray | None:
    """(q - zero_point) * scale in float64, where everything is constant."""
    known = query.is_constant(operand.q) and query.is_constant(operand.scale)
    if not known or not (operand.zero_point is None or query.is_constant(operand.zero_point)) or operand.block_size:
        return None
    centred, scales = operand.centred(), operand.scales().astype(np.float64)
    if scales.size == 1:
        return np.asarray(centred * scales[0])
    shape = [-1 if index == operand.axis % centred.ndim else 1 for index in range(centred.ndim)]
    return np.asarray(centred * scales.reshape(shape))


def not_a_bias(bias: ir.Value | None, x: Operand, w: Operand, y_step: float | None, channel_axis: int) -> str | None:
    """Refuse a bias that cannot be rounded to a step of the accumulator; `y_step` is that of an output on a grid."""
    if bias is None:
        return None
    steps, channels = step(x, w), channel_count(w, channel_axis)
    if channels is None:
        return "the shape of the weight is unknown"
    levels = bias_levels(bias, steps, channels)
    if isinstance(levels, str):
        return levels
    whole = np.rint(levels)
    moved = 0.0 if (whole == levels).all() else float((np.abs(whole - levels) * steps).max())
    if y_step is not None and moved > y_step / 2:
        return f"the bias would move by {moved:.6g}, more than half a step of the output ({y_step:.6g})"
    return overflow(x, w, channel_axis, whole)


def bias_constant(op: Builder, bias: ir.Value | None, x: Operand, w: Operand, channel_axis: int) -> ir.Value | None:
    """The bias as the int32 constant that kernels add to the accumulator; it was checked with `not_a_bias`."""
    if bias is None:
        return None
    return _int32_constant(op, bias, np.rint(known_levels(bias, step(x, w), w, channel_axis)))


def dequantized_bias(op: Builder, levels: np.ndarray, steps: np.ndarray) -> ir.Value:
    """A DequantizeLinear of an int32 bias on the grid of the accumulator."""
    scale = steps.astype(np.float32).reshape(-1) if steps.size > 1 else steps.astype(np.float32).reshape(())
    integers = op.constant(np.rint(levels).astype(np.int32), "bias")
    axis = {"axis": 0} if steps.size > 1 else {}
    return op.DequantizeLinear(integers, op.constant(scale, "bias_scale"), **axis)


def _int32_constant(op: Builder, bias: ir.Value, levels: np.ndarray) -> ir.Value:
    """`levels` as an initializer: the one that the bias was dequantized from, where it holds the same."""
    producer = bias.producer()
    stored = producer.inputs[0] if producer is not None and producer.op_type == "DequantizeLinear" else None
    tensor = query.constant(stored)
    if stored is not None and tensor is not None and tensor.dtype == np.int32 and np.array_equal(tensor, levels):
        return stored
    return op.constant(levels.astype(np.int32), "bias")


def channel_count(w: Operand, channel_axis: int) -> int | None:
    """The number of output channels of the weight, where its shape is known."""
    shape = query.static_shape(w.q)
    return None if shape is None else shape[channel_axis]
