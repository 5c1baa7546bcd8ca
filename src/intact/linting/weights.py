"""Weights whose scales integer kernels cannot hold, or that the runtime quantizes on its own."""

from __future__ import annotations

import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Isolated, Severity
from intact.model import query


class ConvWeightAxis(Isolated):
    """The scales of a Conv's weight do not run along its output channels.

    ONNX allows DequantizeLinear any axis. ONNX Runtime fuses DequantizeLinear → Conv → QuantizeLinear into a
    QLinearConv without looking at it, and reads the scales as one for each output channel.

    Measured (ONNX Runtime 1.31.1): 17 to 154 steps off where the number of scales happens to be the number of output
    channels; otherwise the session fails when it runs.

    Fix: quantize the weight along axis 0. `--fix` keeps the numbers as they are: the weight becomes float and the
    node is kept out of the fusion, so that it runs as a float convolution.
    """

    code = "Q101"
    severity = Severity.ERROR
    ops = ("Conv",)

    def fault(self, node: ir.Node) -> str | None:
        weight = _weight(node)
        return None if weight is None or not any(nearby.readers_of_8_bits(node)) else _off_axis(weight, 0)


class MatMulWeightAxis(Isolated):
    """The scales of a MatMul's or Gemm's weight do not run along its columns.

    The kernels QLinearMatMul, MatMulIntegerToFloat and QGemm have one scale for each column of the result. ONNX
    Runtime fuses into them whatever the axis of the weight's DequantizeLinear is, and blocks of scales too.

    Measured (ONNX Runtime 1.31.1): 26 to 64 steps off where the weight is square; otherwise MatMul fails when it
    runs, and Gemm is not fused.

    Fix: quantize the weight along its last axis (for a Gemm with transB along axis 0), in one block. `--fix` keeps
    the numbers: the weight becomes float and the node is kept out of the fusion.
    """

    code = "Q102"
    severity = Severity.ERROR
    ops = ("MatMul", "Gemm")

    def fault(self, node: ir.Node) -> str | None:
        weight = _weight(node)
        if weight is None or nearby.rank(weight) != 2:
            return None
        transposed = node.op_type == "Gemm" and query.int_(node, "transB", 0) == 1
        return _off_axis(weight, 0 if transposed else 1)


class BatchedMatMulScales(Isolated):
    """A MatMul has several scales on its left input, or on a right input of three or more dimensions.

    The integer kernels take one scale for the left input, and several for a right input that is a matrix only. ONNX
    Runtime fuses the node anyway.

    Measured (ONNX Runtime 1.31.1): the session fails when it runs, for every combination of axes that was tried.

    Fix: use one scale. `--fix` keeps the numbers: constants become float and the node is kept out of the fusion.
    """

    code = "Q103"
    severity = Severity.ERROR
    ops = ("MatMul",)

    def fault(self, node: ir.Node) -> str | None:
        left, right = (nearby.dequantizer(value) for value in node.inputs)
        if left is None or right is None or nearby.bits(left) != 8 or nearby.bits(right) != 8:
            return None
        if nearby.count(left) > 1:
            return f"the left input has {nearby.count(left)} scales, integer kernels take one"
        rank = nearby.rank(right)
        if nearby.count(right) > 1 and rank is not None and rank > 2:
            return f"the right input has {rank} dimensions and {nearby.count(right)} scales, integer kernels take one"
        return None


class FloatWeightRequantized(Isolated):
    """A float weight stands between quantized activations, where ONNX Runtime quantizes it on its own.

    The pass WeightBiasQuantization gives every float weight of a Conv, ConvTranspose or Gemm whose input is
    dequantized and whose output is quantized (Relu and Clip may stand between) an int8 grid with a single scale. It
    does so beside 16-bit activations as well, and where the weight was left in float on purpose.

    Measured (ONNX Runtime 1.31.1): a 3×3 Conv whose channels differ in scale by up to 8: one step on 0.7 % of the
    outputs; the error grows with the spread of the channels.

    Fix: quantize the weight with one scale for each channel. `--fix` keeps it in float and keeps the pass away.
    """

    code = "Q118"
    severity = Severity.WARNING
    ops = ("Conv", "ConvTranspose", "Gemm")

    def fault(self, node: ir.Node) -> str | None:
        data = nearby.dequantizer(node.inputs[0])
        weight = query.constant_tensor(node.inputs[1])
        if data is None or nearby.count(data) > 1 or weight is None or weight.dtype != ir.DataType.FLOAT:
            return None
        bias = query.input_(node, 2)
        if not _leads_to_quantizer(node) or (bias is not None and not query.is_constant(bias)):
            return None
        return f"its weight {node.inputs[1].name!r} is float, ONNX Runtime will make it int8 with a single scale"  # type: ignore[union-attr]


def _weight(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear of the second input, where an integer kernel could take both inputs."""
    weight = nearby.dequantizer(node.inputs[1])
    if weight is None or nearby.bits(weight) != 8 or not nearby.reads_8_bits(node.inputs[0]):
        return None
    return weight


def _off_axis(weight: ir.Node, wanted: int) -> str | None:
    found, number = nearby.axis(weight), nearby.count(weight)
    if number == 1 or (found == wanted and not nearby.block_size(weight)):
        return None
    blocks = f" in blocks of {nearby.block_size(weight)}" if nearby.block_size(weight) else ""
    return f"its weight has {number} scales along axis {found}{blocks}; kernels want one for each of axis {wanted}"


def _leads_to_quantizer(node: ir.Node) -> bool:
    """True if the one use of the node's output is a QuantizeLinear, Relu and Clip in between allowed."""
    user = query.only_consumer(node.outputs[0])
    while user is not None and user.op_type in ("Relu", "Clip"):
        user = query.only_consumer(user.outputs[0])
    return user is not None and user.op_type == "QuantizeLinear"
