"""Activations: grids that a fusion of ONNX Runtime drops, refuses or makes up."""

from __future__ import annotations

import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Isolated, Severity
from intact.model import query


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
    domains = nearby.DOMAINS
    remedy = "--fix puts a Min that changes nothing between the Relu and the QuantizeLinear"

    def fenced(self, node: ir.Node) -> tuple[int, ...]:
        return (0,)

    def fault(self, node: ir.Node) -> str | None:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        dtype, zeros = nearby.dtype(node), nearby.zero_point(node)
        if source is None or source.op_type != "Relu" or dtype is None or zeros is None:
            return None
        if dtype.bitwidth >= 8 or zeros.size > 1 or int(zeros.reshape(())) == dtype.min:
            return None
        zero = int(zeros.reshape(()))
        return f"its zero point is {zero}, the least {dtype.name.lower()} is {dtype.min}: the Relu before it is dropped"


class PerChannelActivation(Isolated):
    """A uint8 activation has one scale for each channel where ONNX Runtime has a kernel for one scale only.

    DequantizeLinear → Add → QuantizeLinear and its likes are fused into kernels whose scales are scalars, whether
    the scales of the graph are or not. On x86 that concerns uint8: int8 is fused only where it can be made uint8, which
    wants one scale. A Conv with a bias is fused only where the scale of its input is one.

    Measured (ONNX Runtime 1.31.1, x86): sessions with Add, Mul, Sigmoid, LeakyRelu, Softmax, AveragePool, Concat or
    Where do not load; Conv, MatMul and GlobalAveragePool fail when they run. Operators that only move values are not
    affected.

    Fix: use one scale for activations. `--fix` keeps the numbers: the node is kept out of the fusion.
    """

    code = "Q107"
    severity = Severity.ERROR
    ops_in_half = ("Concat",)

    # Their other inputs are weights, whose scales may be several: see Q101 to Q103.
    _linear = ("Conv", "MatMul")
    _elementwise = ("Add", "LeakyRelu", "Mul", "Sigmoid", "Softmax", "Where")
    ops = (*_linear, *_elementwise, *ops_in_half, "AveragePool", "GlobalAveragePool")

    def fault(self, node: ir.Node) -> str | None:
        linear = node.op_type in self._linear
        data = node.inputs[: 1 if linear else None][1 if node.op_type == "Where" else 0 :]
        sources = [nearby.dequantizer(value) for value in data]
        if not sources or any(source is None or nearby.dtype(source) != ir.DataType.UINT8 for source in sources):
            return None
        if not any(nearby.readers_of_8_bits(node)) or (linear and not nearby.reads_8_bits(node.inputs[1])):
            return None
        # The left input of a MatMul is the subject of Q103.
        fused = node.op_type != "MatMul" and not (node.op_type == "Conv" and query.input_(node, 2) is not None)
        for source in sources:
            if fused and source is not None and nearby.count(source) > 1:
                return f"it reads {source.name} with {nearby.count(source)} scales, kernels take one"
        for reader in nearby.quantizers_of(node.outputs[0]):
            if nearby.count(reader) > 1:
                return f"{reader.name} quantizes it with {nearby.count(reader)} scales, kernels take one"
        return None


class DoubleQuantization(Isolated):
    """A tensor is quantized to one grid of 8 or 16 bits and straight away to another of the same type.

    ONNX Runtime's DoubleQDQPairsRemover merges QuantizeLinear → DequantizeLinear → QuantizeLinear → DequantizeLinear
    into one pair with a scale and zero point of its own making, that are neither the first nor the second.

    Measured (ONNX Runtime 1.31.1): up to one step off, on 38 to 97 % of the values.

    Fix: leave one of the pairs out. `--fix` keeps both, with a Min that changes nothing between them.
    """

    code = "Q110"
    severity = Severity.WARNING
    ops = ("QuantizeLinear",)
    domains = nearby.DOMAINS
    remedy = "--fix puts a Min that changes nothing between the two pairs"

    def fenced(self, node: ir.Node) -> tuple[int, ...]:
        return (0,)

    def fault(self, node: ir.Node) -> str | None:
        first = nearby.dequantizer(node.inputs[0])
        if first is None or nearby.quantizer(first.inputs[0]) is None:
            return None
        if nearby.bits(first) not in (8, 16) or nearby.dtype(first) != nearby.dtype(node):
            return None
        if nearby.count(first) > 1 or nearby.count(node) > 1:
            return None
        before, after = _scale_and_zero(first), _scale_and_zero(node)
        if before is None or after is None or before == after:
            return None
        return (
            f"the grid of {first.name} (scale {before[0]:.6g}, zero point {before[1]}) is followed by another "
            f"(scale {after[0]:.6g}, zero point {after[1]})"
        )


def _scale_and_zero(node: ir.Node) -> tuple[float, int] | None:
    scale, zero = query.scalar(query.input_(node, 1)), nearby.zero_point(node)
    return None if scale is None or zero is None else (float(scale), int(zero.reshape(-1)[0]))
