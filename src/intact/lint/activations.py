"""Activations: grids that a fusion of ONNX Runtime drops, refuses or makes up."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intact.graph import query
from intact.graph.rewriter import WITHIN_ONE_STEP
from intact.lint import grids
from intact.lint.check import Check, Isolated, Severity, fence

MICROSOFT = "com.microsoft"
_KERNEL = "QLinearSoftmax"
# Before this version of the operator, a Softmax goes over its axis and all that follow.
_ALONG_ONE_AXIS = 13


class ReluBeforeFewBits(Isolated):
    """A Relu in front of a 4-bit QuantizeLinear whose zero point is not its least integer.

    ONNX Runtime removes a Relu where the grid after it cuts negative values off anyway. For 4-bit types it does not
    look at the zero point, and removes the Relu of a grid that has room below zero.

    Measured (ONNX Runtime 1.31.1): every negative value comes through, 3 to 8 steps off on half of the outputs.

    Fix: choose the least integer as the zero point. `--fix` puts a Min that changes nothing behind the Relu, which
    then stays.
    """

    code = "Q106"
    severity = Severity.ERROR
    ops = ("QuantizeLinear",)
    domains = grids.DOMAINS
    remedy = "--fix puts a Min that changes nothing between the Relu and the QuantizeLinear"

    def fenced(self, node: ir.Node) -> tuple[int, ...]:
        return (0,)

    def fault(self, node: ir.Node) -> str | None:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        dtype, zeros = grids.dtype(node), grids.zero_point(node)
        if source is None or source.op_type != "Relu" or dtype is None or zeros is None:
            return None
        if dtype.bitwidth >= 8 or (zeros == dtype.min).all():
            return None
        zero = int(zeros.reshape(-1)[np.argmax(zeros != dtype.min)])
        return f"its zero point is {zero}, the least {dtype.name.lower()} is {dtype.min}: the Relu before it is dropped"


class PerChannelActivation(Isolated):
    """An activation has one scale for each channel where ONNX Runtime has a kernel for one scale only.

    DequantizeLinear → Add → QuantizeLinear and its likes are fused into kernels whose scales are scalars, whether
    the scales of the graph are or not.

    Measured (ONNX Runtime 1.31.1): sessions with Add, Mul, Sigmoid, LeakyRelu, Softmax, AveragePool, Concat or Where
    do not load; Conv and GlobalAveragePool fail when they run. Operators that only move values are not affected.

    Fix: use one scale for activations. `--fix` keeps the numbers: the node is kept out of the fusion.
    """

    code = "Q107"
    severity = Severity.ERROR
    ops = (
        "Add",
        "AveragePool",
        "Concat",
        "Conv",
        "Gemm",
        "GlobalAveragePool",
        "LeakyRelu",
        "MatMul",
        "Mul",
        "Sigmoid",
        "Softmax",
        "Where",
    )

    # Their other inputs are weights, whose scales may be several: see Q101 to Q103.
    _linear = ("Conv", "Gemm", "MatMul")

    def fault(self, node: ir.Node) -> str | None:
        linear = node.op_type in self._linear
        data = node.inputs[: 1 if linear else None][1 if node.op_type == "Where" else 0 :]
        sources = [grids.dequantizer(value) for value in data]
        if not sources or any(source is None or grids.bits(source) != 8 for source in sources):
            return None
        if linear and not grids.reads_8_bits(node.inputs[1]):
            return None
        for source in sources:
            # The left input of a MatMul is the subject of Q103; a Gemm is not fused then.
            if source is not None and grids.count(source) > 1 and node.op_type not in ("Gemm", "MatMul"):
                return f"it reads {source.name} with {grids.count(source)} scales, kernels take one"
        for reader in grids.quantizers_of(node.outputs[0]):
            if grids.count(reader) > 1:
                return f"{reader.name} quantizes it with {grids.count(reader)} scales, kernels take one"
        return None


class SoftmaxScale(Isolated):
    """The output scale of a Softmax is not one over a whole number.

    QLinearSoftmax multiplies by floor(1 / y_scale). For 1/256 that is exact; for 1/255, the scale that a range of
    0 to 1 gives, rounding makes it 254: a probability of 1 comes out as 254/255.

    Measured (ONNX Runtime 1.31.1): y_scale 1/255: one step too low on 5 % of the outputs, the largest ones first.

    Fix: use the scale 1/256 with the least integer as zero point. `--fix` keeps the grid and keeps the node out of
    the fusion; it then computes in float. A QLinearSoftmax that is in the file is taken apart, which moves its results
    by the step that they were off.
    """

    code = "Q108"
    severity = Severity.WARNING
    exactness = WITHIN_ONE_STEP
    ops = ("Softmax", _KERNEL)
    domains = ("", MICROSOFT)
    remedy = "--fix keeps the node out of the integer kernel: its input passes a Min that changes nothing"

    def fault(self, node: ir.Node) -> str | None:
        if node.op_type == _KERNEL:
            return _not_whole(query.scalar(query.input_(node, 3)))
        if not grids.reads_8_bits(node.inputs[0]):
            return None
        readers = [reader for reader in grids.quantizers_of(node.outputs[0]) if grids.bits(reader) == 8]
        faults = (_not_whole(query.scalar(query.input_(reader, 1))) for reader in readers)
        return next((fault for fault in faults if fault is not None), None)

    def fixable(self, node: ir.Node) -> bool:
        return node.op_type != _KERNEL or query.int_(node, "opset", 0) >= _ALONG_ONE_AXIS

    def check(self, node: ir.Node) -> str | None:
        return super().check(node) or (None if self.fixable(node) else "it goes over several axes at once")

    def rewrite(self, op: Any, node: ir.Node) -> Any:
        if node.op_type != _KERNEL:
            return super().rewrite(op, node)
        real = op.DequantizeLinear(*node.inputs[:3])
        real.dtype = ir.DataType.FLOAT
        softmax = op.Softmax(fence(op, real), axis=query.int_(node, "axis", -1))
        return op.QuantizeLinear(softmax, *node.inputs[3:5])


def _not_whole(scale: float | None) -> str | None:
    """What a kernel makes of a scale that is not one over a whole number."""
    if scale is None or not scale > 0:
        return None
    levels = np.float32(1) / np.float32(scale)
    if levels == np.floor(levels):
        return None
    return f"the scale of its output is {scale:.8g}, 1/{levels:.8g}; the kernel uses 1/{int(np.floor(levels))}"


class DoubleQuantization(Isolated):
    """A tensor is quantized to one 8-bit grid and straight away to another of the same type.

    ONNX Runtime's DoubleQDQPairsRemover merges QuantizeLinear → DequantizeLinear → QuantizeLinear → DequantizeLinear
    into one pair with a scale and zero point of its own making, that are neither the first nor the second.

    Measured (ONNX Runtime 1.31.1): up to one step off, on 38 to 97 % of the values.

    Fix: leave one of the pairs out. `--fix` keeps both, with a Min that changes nothing between them.
    """

    code = "Q110"
    severity = Severity.WARNING
    ops = ("QuantizeLinear",)
    domains = grids.DOMAINS
    remedy = "--fix puts a Min that changes nothing between the two pairs"

    def fenced(self, node: ir.Node) -> tuple[int, ...]:
        return (0,)

    def fault(self, node: ir.Node) -> str | None:
        first = grids.dequantizer(node.inputs[0])
        if first is None or grids.quantizer(first.inputs[0]) is None:
            return None
        if grids.bits(first) != 8 or grids.bits(node) != 8 or grids.count(first) > 1 or grids.count(node) > 1:
            return None
        if grids.dtype(first) != grids.dtype(node):
            return None
        before, after = _scale_and_zero(first), _scale_and_zero(node)
        if before is None or after is None or before == after:
            return None
        return (
            f"the grid of {first.name} (scale {before[0]:.6g}, zero point {before[1]}) is followed by another "
            f"(scale {after[0]:.6g}, zero point {after[1]})"
        )


def _scale_and_zero(node: ir.Node) -> tuple[float, int] | None:
    scale, zero = query.scalar(query.input_(node, 1)), grids.zero_point(node)
    return None if scale is None or zero is None else (float(scale), int(zero.reshape(-1)[0]))


CHECKS: tuple[Check, ...] = (ReluBeforeFewBits(), PerChannelActivation(), SoftmaxScale(), DoubleQuantization())
