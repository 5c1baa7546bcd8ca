"""Constants in front of Q: what training with quantization leaves of weights, as the integers that they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, LocalRule
from intact.model import query
from intact.numbers import integer
from intact.rules.quantized.operand import Operand, q_operand, type_name

FAMILY = "folding"

_TYPES = (ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.UINT16, ir.DataType.INT16)


class QuantizeConstant(LocalRule):
    """Q(c, s, z) for a constant c is constant integers: an NPU takes no other weight, and a CPU saves the time."""

    exactness = EXACT

    def pattern(self, op: Patterns, c: Var) -> Roots:
        return op.QuantizeLinear(op.constant(c), Var("s"), Var("z", optional=True), _name="last")

    def check(self, c: ir.Value, last: ir.Node) -> str | None:
        levels, array = q_operand(last), query.known_constant(c)
        if levels.q.is_graph_output():
            return "the model returns the integers, and an output is no constant"
        if levels.dtype not in _TYPES:
            return f"the result is {type_name(levels.dtype)}, not of 8 or 16 bits"
        if array.dtype != np.float32 or not np.isfinite(array).all():
            return "the constant is not finite numbers of float32"
        return _not_constant(levels)

    def rewrite(self, op: Builder, c: ir.Value, last: ir.Node) -> ir.Value:
        levels, array = q_operand(last), query.constant(c)
        scales, zeros = (query.constant(value) for value in levels.grid(op))
        assert array is not None and scales is not None and zeros is not None, "the constants were checked"
        integers = integer.quantize_linear(array, scales, zeros, axis=levels.axis, block_size=levels.block_size)
        return op.constant(integers, "integers")


def _not_constant(levels: Operand) -> str | None:
    scales = query.constant(levels.scale)
    if scales is None or not (levels.zero_point is None or query.is_constant(levels.zero_point)):
        return "scale or zero point is computed, not constant"
    # Written so that NaN is refused as well.
    return None if ((scales > 0) & np.isfinite(scales)).all() else "a scale is not a positive number"
