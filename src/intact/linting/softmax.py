"""Softmax on integers: a kernel that multiplies by a whole number of steps, in floats that may be too small for it."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Isolated, Severity, fence
from intact.matching.builder import Builder
from intact.matching.rewriter import EXACT, WITHIN_ONE_STEP
from intact.model import query

MICROSOFT = "com.microsoft"
_KERNEL = "QLinearSoftmax"
# Before this version of the operator, a Softmax goes over its axis and all that follow.
_ALONG_ONE_AXIS = 13
# The kernel makes the exponential of the largest of n elements the largest float32 over n · e^5.
_HEADROOM = math.e**5


class _Softmax(Isolated):
    """The common part of the checks below: the step of the output, and a kernel in the file taken apart."""

    ops = ("Softmax", _KERNEL)
    domains = ("", MICROSOFT)
    remedy = "--fix keeps the node out of the integer kernel: its input passes a Min that changes nothing"

    def fault(self, node: ir.Node) -> str | None:
        faults = (self.fault_at(node, scale) for scale in _output_scales(node))
        return next((fault for fault in faults if fault is not None), None)

    def fault_at(self, node: ir.Node, scale: float) -> str | None:
        """Describe the fault of the node where its output has this scale, or return None."""
        raise NotImplementedError(f"{type(self).__name__}.fault_at")

    def fixable(self, node: ir.Node) -> bool:
        return node.op_type != _KERNEL or query.int_(node, "opset", 0) >= _ALONG_ONE_AXIS

    def check(self, node: ir.Node) -> str | None:
        return super().check(node) or (None if self.fixable(node) else "it goes over several axes at once")

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        if node.op_type != _KERNEL:
            return super().rewrite(op, node)
        real = op.DequantizeLinear(*node.inputs[:3])
        real.dtype = ir.DataType.FLOAT
        softmax = op.Softmax(fence(op, real), axis=query.int_(node, "axis", -1))
        return op.QuantizeLinear(softmax, *node.inputs[3:5])


class SoftmaxScale(_Softmax):
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

    def fault_at(self, node: ir.Node, scale: float) -> str | None:
        levels = np.float32(1) / np.float32(scale)
        if levels == np.floor(levels):
            return None
        return f"the scale of its output is {scale:.8g}, 1/{levels:.8g}; the kernel uses 1/{int(np.floor(levels))}"


class SoftmaxOverflow(_Softmax):
    """A Softmax over few elements has an output scale so small that its integer kernel overflows.

    QLinearSoftmax makes the exponential of the largest of n elements the largest float32 over n · e⁵, and multiplies
    it by floor(1 / y_scale) before it divides by the sum. Above 148.4 · n that is infinite, and becomes 0. One element
    is enough for the usual scale of 1/256; two elements whose probabilities were at most 0.85 during calibration
    have a scale below 1/297.

    Measured (ONNX Runtime 1.31.1): the largest probability of every row comes out as 0, up to 255 steps off.

    Fix: use the scale 1/256 where there are two elements or more, and leave a Softmax of one element out. `--fix`
    keeps the grid and keeps the node out of the fusion; it then computes in float.
    """

    code = "Q123"
    severity = Severity.ERROR
    exactness = EXACT

    def fault_at(self, node: ir.Node, scale: float) -> str | None:
        elements, levels = _elements(node), np.floor(np.float32(1) / np.float32(scale))
        if elements is None or levels <= elements * _HEADROOM:
            return None
        return f"it goes over {elements} elements with 1/{levels:.6g} as the scale of its output: the kernel overflows"


def _output_scales(node: ir.Node) -> list[float]:
    """The constant scales of the 8-bit grids of a Softmax that is a kernel, or that becomes one."""
    if node.op_type == _KERNEL:
        found = [query.scalar(query.input_(node, 3))]
    elif nearby.reads_8_bits(node.inputs[0]):
        readers = (reader for reader in nearby.quantizers_of(node.outputs[0]) if nearby.bits(reader) == 8)
        found = [query.scalar(query.input_(reader, 1)) for reader in readers]
    else:
        found = []
    return [scale for scale in found if scale is not None and scale > 0]


def _elements(node: ir.Node) -> int | None:
    """The number of elements that a Softmax along one axis goes over, or None if unknown."""
    value = node.inputs[0]
    sizes = None if value is None or value.shape is None else value.shape
    axis = query.int_(node, "axis", -1)
    if sizes is None or not -len(sizes) <= axis < len(sizes):
        return None
    size = sizes[axis]
    return size if isinstance(size, int) else None
