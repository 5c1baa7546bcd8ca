"""Biases: integers that mean something only at the scale x_scale · w_scale, and only within 32 bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Check, Finding, Isolated, Severity
from intact.matching.builder import Builder
from intact.model import query
from intact.numbers.integer_types import BYTE_STEPS, INT32_MAX

# Scales are float32, and their product is rounded once more: closer than this they are the same number.
_ROUNDING = 2.0**-22


class _BiasGrid(Isolated):
    """f(x, w, DQ(b, s)) = f(x, w, DQ(b·s / (sx·sw), sx·sw)) where b·s / (sx·sw) is whole; else the node is isolated."""

    def fault(self, node: ir.Node) -> str | None:
        bias = nearby.dequantizer(query.input_(node, 2))
        unit = _unit(node)
        wanted = None if bias is None or unit is None else _levels(bias, unit)
        if bias is None or wanted is None or not _fuses(node):
            return None
        stored = nearby.integers(bias)
        assert stored is not None, "levels are there for constants only"
        off = np.abs(wanted - stored)
        wrong = (off >= 0.5) & (off > np.abs(wanted) * _ROUNDING)
        if not wrong.any():
            return None
        at = int(np.argmax(off * wrong))
        return (
            f"element {at} of its bias is {stored.reshape(-1)[at]}, but at the scale that the kernel gives it, "
            f"x_scale · w_scale, it would have to be {wanted.reshape(-1)[at]:.6g}"
        )

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        bias, unit = nearby.dequantizer(node.inputs[2]), _unit(node)
        assert bias is not None and unit is not None, "the check saw both"
        wanted = _levels(bias, unit)
        assert wanted is not None, "the check saw them"
        whole = np.rint(wanted)
        if (np.abs(whole) > INT32_MAX).any() or (np.abs(wanted - whole) > np.abs(wanted) * _ROUNDING).any():
            return super().rewrite(op, node)
        axis = {"axis": whole.ndim - 1} if unit.size > 1 else {}
        integers, scale = (
            op.constant(whole.astype(np.int32), "bias"),
            op.constant(unit.astype(np.float32), "bias_scale"),
        )
        rescaled = op.DequantizeLinear(integers, scale, **axis)
        return op.like(node, *node.inputs[:2], rescaled)


class ConvBiasScale(_BiasGrid):
    """The scale of a Conv's bias is not x_scale · w_scale.

    QLinearConv adds the integers of the bias to its accumulator, whose scale is x_scale · w_scale. ONNX Runtime
    compares the scales with an absolute tolerance of 1e-6, which is larger than many products of two scales: then
    any bias scale passes, and the bias is added at the wrong one.

    Measured (ONNX Runtime 1.31.1): with x_scale · w_scale = 5e-7 and a bias scale twice as large, 67 steps off.

    Fix: quantize the bias with the scale x_scale · w_scale. `--fix` does so where the bias falls on whole numbers
    at that scale; otherwise it makes the bias float and keeps the node out of the fusion.
    """

    code = "Q104"
    severity = Severity.ERROR
    ops = ("Conv",)


class GemmBiasGrid(_BiasGrid):
    """The scale of a Gemm's bias is not x_scale · w_scale, or its zero point is not 0.

    QGemm adds the integers of the bias to its accumulator. ONNX Runtime checks neither their scale nor their zero
    point before it fuses.

    Measured (ONNX Runtime 1.31.1): a bias scale twice or four times too large: 4 and 10 steps off on 90 to 100 % of
    the outputs; a zero point is ignored.

    Fix: quantize the bias with the scale x_scale · w_scale and zero point 0. `--fix` does so where the bias falls on
    whole numbers at that scale; otherwise it makes the bias float and keeps the node out of the fusion.
    """

    code = "Q105"
    severity = Severity.ERROR
    ops = ("Gemm",)


class BiasOverflow(Isolated):
    """A bias, or the sum that it starts, does not fit the 32-bit accumulator.

    Integer kernels add the bias, in units of x_scale · w_scale, to a sum of products in an int32 that wraps around.
    A float bias is no way out by itself: ONNX Runtime makes it int32 without looking whether it fits.

    Measured (ONNX Runtime 1.31.1): a float bias of 1.7e11 units: 65 steps off on every output.

    Fix: use a larger scale for the weight of this channel. `--fix` keeps the numbers: constants become float and the
    node is kept out of the fusion. The bias of a QLinearConv has been cut off already and has to be made again.
    """

    code = "Q111"
    severity = Severity.ERROR
    ops = ("Conv", "Gemm")

    def find(self, model: ir.Model) -> Iterator[Finding]:
        """Every Conv and Gemm between Q and DQ, and every QLinearConv."""
        yield from super().find(model)
        for node in query.all_nodes(model):
            fault = _overflow_in_kernel(node) if node.op_type == "QLinearConv" else None
            if fault is not None:
                yield self.finding(node, fault)

    def fixable(self, node: ir.Node) -> bool:
        return node.op_type != "QLinearConv"

    def fault(self, node: ir.Node) -> str | None:
        levels = _bias_levels(node)
        data, weight = nearby.dequantizer(node.inputs[0]), nearby.dequantizer(node.inputs[1])
        if levels is None or data is None or weight is None or not _fuses(node):
            return None
        if _overflow(levels, np.full(1, _most_products(weight))) is None:
            return None
        centred = nearby.centred(weight)
        output = 1 if node.op_type == "Gemm" and not query.int_(node, "transB", 0) else 0
        sums = np.zeros(1) if centred is None else _sums(centred, output)
        return _overflow(levels, sums * nearby.reach(data))


class SharedBias(Check):
    """One integer bias serves nodes whose x_scale · w_scale differ.

    The integers of a bias mean something only at the scale of the accumulator that they are added to. Exporters that
    remove duplicate constants, and graphs that share a layer, leave one bias for several scales: for all but one of
    the nodes it is a different number, off by the ratio of the scales.

    Fix: give each node a bias of its own, quantized with its own scale. Where the bias is behind a single
    DequantizeLinear, `--fix` does so (see Q104 and Q105).
    """

    code = "Q112"
    severity = Severity.WARNING
    remedy = "give each node a bias of its own, quantized at x_scale · w_scale of that node"

    def find(self, model: ir.Model) -> Iterator[Finding]:
        """Each node whose accumulator has another scale than that of the first node with the same bias."""
        first: dict[ir.Value, tuple[ir.Node, np.ndarray]] = {}
        for node in query.all_nodes(model):
            stored, unit = _integer_bias(node)
            if stored is None or unit is None:
                continue
            other, expected = first.setdefault(stored, (node, unit))
            if not _same_scale(unit, expected):
                yield self.finding(
                    node, f"shares the integers of its bias {stored.name!r} with {other.name}, at another scale"
                )


def _same_scale(left: np.ndarray, right: np.ndarray) -> bool:
    return bool((np.abs(left - right) <= np.abs(right) * _ROUNDING).all()) if _broadcast(left, right) else False


def _broadcast(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape or 1 in (left.size, right.size)


def _integer_bias(node: ir.Node) -> tuple[ir.Value | None, np.ndarray | None]:
    """The constant with the integers of the node's bias, and the scale of the node's accumulator."""
    if node.op_type == "QLinearConv":
        scales = [query.constant(query.input_(node, index)) for index in (1, 4)]
        if query.input_(node, 8) is None or scales[0] is None or scales[1] is None:
            return None, None
        return node.inputs[8], np.asarray(scales[0].reshape(-1) * scales[1].reshape(-1), np.float64)
    if node.op_type not in ("Conv", "Gemm"):
        return None, None
    bias = nearby.dequantizer(query.input_(node, 2))
    if bias is None or not query.is_constant(bias.inputs[0]):
        return None, None
    return bias.inputs[0], _unit(node)


def _unit(node: ir.Node) -> np.ndarray | None:
    """The scale of the node's accumulator, as float64 of the float32 product: one, or one for each channel."""
    data, weight = nearby.dequantizer(node.inputs[0]), nearby.dequantizer(node.inputs[1])
    if (
        data is None
        or weight is None
        or nearby.block_size(weight)
        or nearby.bits(data) != 8
        or nearby.bits(weight) != 8
    ):
        return None
    x, w = query.constant(data.inputs[1]), query.constant(weight.inputs[1])
    if x is None or w is None or x.size != 1 or not (x > 0).all() or not (w > 0).all():
        return None
    product = (x.reshape(-1) * w.reshape(-1)).astype(np.float64)
    return np.asarray(product.reshape(()) if product.size == 1 else product)


def _fuses(node: ir.Node) -> bool:
    """True if ONNX Runtime makes an integer kernel of the node: a Gemm with factors and a bias stays as it is."""
    return query.float_(node, "alpha", 1.0) == 1.0 and query.float_(node, "beta", 1.0) == 1.0


def _levels(bias: ir.Node, unit: np.ndarray) -> np.ndarray | None:
    """The constant behind a bias's DequantizeLinear in units of the accumulator, or None if it is not int32."""
    centred, scales = nearby.centred(bias), nearby.scale(bias)
    if centred is None or scales is None or bias.inputs[0].dtype != ir.DataType.INT32:  # type: ignore[union-attr]
        return None
    ratio = scales.reshape(-1) / unit.reshape(-1) if _broadcast(scales, unit) else None
    if ratio is None or (ratio.size > 1 and ratio.size != centred.shape[-1]):
        return None
    return np.asarray(centred * ratio if ratio.size > 1 else centred * ratio[0])


def _bias_levels(node: ir.Node) -> np.ndarray | None:
    """The bias in units of the accumulator, whether it is a float constant or one behind a DequantizeLinear."""
    unit, value = _unit(node), query.input_(node, 2)
    if unit is None or value is None:
        return None
    bias = nearby.dequantizer(value)
    if bias is not None:
        return _levels(bias, unit)
    array = query.constant(value)
    if array is None or (unit.size > 1 and array.shape[-1:] != unit.shape):
        return None
    return np.asarray(array.astype(np.float64) / unit)


def _most_products(weight: ir.Node) -> float:
    """A bound on a sum of products that needs no look at the weight: 8-bit differences are at most `BYTE_STEPS`."""
    shape = query.static_shape(weight.inputs[0])
    return 0.0 if shape is None else float(BYTE_STEPS) ** 2 * float(np.prod(shape, dtype=np.float64))


def _sums(centred: np.ndarray, axis: int) -> np.ndarray:
    """The sum of the magnitudes of the weights of each output channel."""
    return np.asarray(np.abs(np.moveaxis(centred, axis, 0).reshape(centred.shape[axis], -1)).sum(axis=1), np.float64)


def _overflow(levels: np.ndarray, products: np.ndarray) -> str | None:
    reach = np.abs(levels) + (products if _broadcast(levels, products) else products.max(initial=0.0))
    if (reach <= INT32_MAX).all():
        return None
    return (
        f"its bias is up to {np.abs(levels).max():.4g} units of x_scale · w_scale and its products sum up to "
        f"{products.max(initial=0.0):.4g}: more than int32 holds ({INT32_MAX})"
    )


def _overflow_in_kernel(node: ir.Node) -> str | None:
    bias, weight = query.constant(query.input_(node, 8)), query.constant(node.inputs[3])
    zero = query.constant(node.inputs[5])
    if bias is None or weight is None or zero is None or weight.ndim < 2:
        return None
    zeros = zero.astype(np.int64).reshape(-1, *(1,) * (weight.ndim - 1))
    return _overflow(bias.astype(np.float64), _sums(weight.astype(np.int64) - zeros, 0) * BYTE_STEPS)
