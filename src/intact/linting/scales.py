"""Scales that are no scales: zero, negative, infinite, not a number, or too small for float arithmetic."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Check, Severity
from intact.model import query


class UnusableScale(Check):
    """A scale is zero, negative, infinite or not a number.

    A QuantizeLinear divides by its scale: zero gives infinities and NaN, whose integers differ from one processor to
    the next. Such scales come from tensors that were constant, or never seen, during calibration.

    Measured (ONNX Runtime 1.31.1): with scale 0 every integer is an end of its range and every real 0; with an
    infinite scale, or one that is no number, every real is NaN.

    Fix: calibrate again with inputs that reach this tensor, or leave it in float.
    """

    code = "Q113"
    severity = Severity.ERROR
    remedy = "calibrate again with inputs that reach this tensor"

    def fault(self, node: ir.Node) -> str | None:
        for scale in _scales(node):
            bad = ~(np.isfinite(scale) & (scale > 0))
            if bad.any():
                return f"{int(bad.sum())} of its {scale.size} scales cannot be used, the first is {scale[bad][0]}"
        return None


class DenormalScale(Check):
    """A scale is smaller than the least normal float.

    Denormal numbers have few bits left, so that the grid is not the one that was meant, and a processor that flushes
    them to zero (as many NPUs and fast-math builds do) divides by zero.

    Fix: give the tensor a range that is not practically zero, or leave it in float.
    """

    code = "Q114"
    severity = Severity.WARNING
    remedy = "give the tensor a wider range, or leave it in float"

    def fault(self, node: ir.Node) -> str | None:
        for scale in _scales(node):
            least = np.finfo(scale.dtype).tiny
            small = (scale > 0) & (scale < least)
            if small.any():
                return f"{int(small.sum())} of its {scale.size} scales are denormal, the first is {scale[small][0]:.3g}"
        return None


def _scales(node: ir.Node) -> list[np.ndarray]:
    """The constant float scales of a node that has any, flat."""
    arrays = [query.constant(query.input_(node, index)) for index in nearby.scale_inputs(node)]
    return [array.reshape(-1) for array in arrays if array is not None and array.dtype in (np.float16, np.float32)]
