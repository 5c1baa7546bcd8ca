"""The sum that a product of integers rounds, and the proof that rounding once is within a step of rounding twice."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.model import query
from intact.numbers import integer
from intact.numbers.integer_types import INT32_MAX
from intact.records import dataclass
from intact.rules.quantized import grid_relations
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, input_operand, output_operand, type_name
from intact.rules.quantized.tail import Head, Tail

# What float32 may add to the rounding of a value on an 8-bit grid, in steps of it, with room to spare.
_FLOAT_SLACK = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Accumulator:
    """The int32 sums of a QLinearConv or QLinearMatMul: their bias and reachable ends, for every output channel."""

    node: ir.Node
    x: Operand
    w: Operand
    y: Operand
    bias: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def name(self) -> str:
        """The name of the product in reasons."""
        return "the convolution" if self.node.op_type == "QLinearConv" else "the product"

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return len(self.bias)

    def head(self, value: ir.Value | None = None, rank: int = 0) -> Head:
        """The result as the next node reads it: of a QLinearMatMul `value` of this rank, which may be reshaped."""
        if value is None:
            return Head(self.node.outputs[0], self.y, self.channels, query.rank(self.w.q) or 0, 1)
        return Head(value, self.y, self.channels, rank, -1)

    def steps(self, factor: np.ndarray | float = 1.0) -> np.ndarray:
        """The worth of one unit of the sum, after weights were scaled by `factor`, as kernels compute it."""
        return np.asarray(self.x.scales()[0] * self.weight_scales(factor))

    def weight_scales(self, factor: np.ndarray | float = 1.0) -> np.ndarray:
        """The scale of each channel of the weight, times `factor`."""
        scales = np.broadcast_to(self.w.scales(), (self.channels,)).astype(np.float64)
        return (scales * factor).astype(np.float32)


def accumulator(node: ir.Node) -> Accumulator | str:
    """The sums of a QLinearConv or QLinearMatMul with constant weight, bias and grids; text says what is not constant.

    The weight of a QLinearMatMul is a matrix.
    """
    is_conv = node.op_type == "QLinearConv"
    x, w, y = input_operand(node, 0), input_operand(node, 3, axis=0 if is_conv else -1), output_operand(node, 6)
    integers, bias = query.constant(w.q), query.constant(query.input_(node, 8))
    if integers is None:
        return "the weight is computed, not constant"
    if bias is None and query.input_(node, 8) is not None:
        return "the bias is computed, not constant"
    if not (query.is_constant(w.scale) and query.is_constant(w.zero_point)):
        return "the grid of the weight is computed, not constant"
    doubt = not_one_grid(input=x, output=y)
    if doubt is not None:
        return doubt
    rows = np.moveaxis(w.centred(), w.axis, 0)
    sums = np.zeros(len(rows), np.int64) if bias is None else bias.astype(np.int64)
    low, high = _reach(x, rows)
    return Accumulator(node, x, w, y, sums, sums + low, sums + high)


def _reach(x: Operand, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest Σ x·w of each channel; padding is x = 0, which lies between."""
    ends = np.array(x.limits) - x.zero
    rows = w.reshape(len(w), -1)
    up, down = np.maximum(rows, 0).sum(axis=1), np.minimum(rows, 0).sum(axis=1)
    return up * ends[0] + down * ends[1], up * ends[1] + down * ends[0]


def refusal(acc: Accumulator, tail: Tail) -> str | None:
    """Refuse a tail that cannot go into the product: the guard, with the numbers that break it."""
    doubt = not_one_grid(result=tail.output) or grid_relations.unusable(tail.output)
    if doubt is not None:
        return doubt
    if tail.output.dtype != acc.y.dtype:
        return f"the result is {type_name(tail.output.dtype)}, {acc.name} writes {type_name(acc.y.dtype)}"
    return _saturates(acc) or _too_coarse(acc, tail) or _overflows(acc, tail) or _moves(acc, tail)


def _saturates(acc: Accumulator) -> str | None:
    """Refuse a grid in between that might cut values off: the product can reach values beyond it."""
    least, greatest = grid_relations.extent(acc.y)
    steps, half = acc.steps().astype(np.float64), acc.y.known_step / 2
    low, high = float((acc.low * steps).min()), float((acc.high * steps).max())
    if least - half <= low and high <= greatest + half:
        return None
    return f"{acc.name} reaches {low:.6g} to {high:.6g}, but the intermediate grid covers {least:.6g} to {greatest:.6g}"


def _too_coarse(acc: Accumulator, tail: Tail) -> str | None:
    coarse = acc.y.known_step * float(tail.affine.factor.max())
    if coarse <= grid_relations.LARGEST_RATIO * tail.output.known_step:
        return None
    return (
        f"the intermediate scale is {coarse:.6g} at the output, "
        f"more than {grid_relations.LARGEST_RATIO:g} times its scale {tail.output.known_step:.6g}"
    )


def _overflows(acc: Accumulator, tail: Tail) -> str | None:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        added = np.rint(tail.affine.shift / acc.steps(tail.affine.factor).astype(np.float64))
    largest = float(np.maximum(np.abs(acc.low + added), np.abs(acc.high + added)).max())
    # Written so that NaN is refused as well.
    return None if largest <= INT32_MAX else f"accumulators may reach {largest:.6g}, more than int32 holds"


def _moves(acc: Accumulator, tail: Tail) -> str | None:
    """Refuse if rounding once is not within a step of rounding twice, looked at where the two can differ most."""
    twice = acc.y.known_step * float(tail.affine.factor.max()) + float(acc.steps(tail.affine.factor).max())
    if twice / (2 * tail.output.known_step) + _FLOAT_SLACK < 1:
        return None
    sums = _critical(acc)
    through = tail.run(_rounded(acc, sums)).astype(np.int64)
    move = int(np.abs(through - _at_once(acc, tail, sums).astype(np.int64)).max())
    return None if move <= 1 else f"some results would move by {move} steps"


def _critical(acc: Accumulator) -> np.ndarray:
    """Sums (channels, n) around every border between two levels of the grid in between, and the reachable ends.

    From one border to the next the result of rounding twice stays, and that of rounding once only rises.
    """
    borders = np.arange(*acc.y.limits) - acc.y.zero + 0.5
    exact = borders * (acc.y.known_step / acc.steps().astype(np.float64))[:, None]
    # Beyond 24 bits float32 holds every second integer only, then every fourth …
    spacing = np.maximum(1, np.exp2(np.ceil(np.log2(np.abs(exact) + 1)) - 23))
    around = [np.floor(exact) + offset * spacing for offset in (-2, -1, 0, 1, 2, 3)]
    ends = acc.low[:, None], acc.high[:, None]
    return np.asarray(np.clip(np.concatenate([*around, *ends], axis=1), *ends), np.int64)


def _rounded(acc: Accumulator, sums: np.ndarray) -> np.ndarray:
    """The integers that the product writes."""
    factor = integer.multiplier(acc.x.scales()[0], acc.weight_scales(), acc.y.scales()[0])
    return integer.requantize(sums, factor[:, None], acc.y.zero_level)


def _at_once(acc: Accumulator, tail: Tail, sums: np.ndarray) -> np.ndarray:
    """The integers that the product would write with the tail in its scale and bias."""
    scales = acc.weight_scales(tail.affine.factor)
    factor = integer.multiplier(acc.x.scales()[0], scales, tail.output.scales()[0])
    return integer.requantize(
        sums + (bias_with(acc, tail) - acc.bias)[:, None], factor[:, None], tail.output.zero_level
    )


def bias_with(acc: Accumulator, tail: Tail) -> np.ndarray:
    """The bias of each channel that does the work of the shift, too."""
    steps = acc.steps(tail.affine.factor).astype(np.float64)
    return acc.bias + np.rint(tail.affine.shift / steps).astype(np.int64)


def weight_grid(op: Builder, acc: Accumulator, tail: Tail) -> tuple[ir.Value | None, ir.Value | None]:
    """Scales of the weight that do the work of the factor, too, and its zero points."""
    if (tail.affine.factor == 1).all():
        return acc.w.scale, acc.w.zero_point
    zeros = np.broadcast_to(acc.w.zeros(), (acc.channels,)).astype(acc.w.known_dtype.numpy())
    scales = op.constant(acc.weight_scales(tail.affine.factor), "weight_scale")
    return scales, op.constant(zeros, "weight_zero_point")


def folded(op: Builder, acc: Accumulator, tail: Tail) -> ir.Value:
    """The convolution that does the work of the tail, too."""
    conv, grids = acc.node, (*weight_grid(op, acc, tail), *tail.output.grid(op))
    bias = query.input_(conv, 8)
    if tail.affine.shift.any():
        bias = op.constant(bias_with(acc, tail).astype(np.int32), "bias")
    return op.QLinearConv(*conv.inputs[:4], *grids, bias, **conv.attributes)
