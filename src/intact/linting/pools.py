"""Pools whose integer kernel in ONNX Runtime divides by another count than the operator does."""

from __future__ import annotations

import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Isolated, Severity
from intact.model import query, windows


class PoolBeyondPadding(Isolated):
    """The last window of an AveragePool reaches beyond the padding, and the padding counts.

    With ceil_mode 1 a last window may stick out of the padded input; with count_include_pad 1 the mean is over what
    lies in the padded input, and not over what sticks out. ONNX Runtime makes a QLinearAveragePool of an AveragePool
    between DequantizeLinear and QuantizeLinear, whose kernel divides by the whole window.

    Measured (ONNX Runtime 1.31.1): windows of 3 x 3 with stride 2 and padding 1 over 8 x 8: a third of the outputs are
    off, by up to 21 steps.

    Fix: `--fix` keeps the node out of the fusion; it then computes in float.
    """

    code = "Q120"
    severity = Severity.ERROR
    ops = ("AveragePool",)
    remedy = "--fix keeps the node out of the integer kernel: its input passes a Min that changes nothing"

    def fault(self, node: ir.Node) -> str | None:
        if not (query.int_(node, "ceil_mode", 0) and query.int_(node, "count_include_pad", 0)):
            return None
        if (
            not any(nearby.readers_of_8_bits(node))
            or not nearby.reads_8_bits(node.inputs[0])
            or not windows.may_stick_out(node)
        ):
            return None
        return "its last window reaches beyond the padding, and the kernel divides by the whole of it"
