"""Channels in the numbers that a kernel takes at once: a few more that are zero cost less than a slower kernel."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots
from intact.matching.rewriter import EXACT
from intact.model import query
from intact.rules.quantized.operand import INT8, UINT8, described
from intact.rules.quantized.product import Product, matches, not_constant, product
from intact.rules.quantized.saturation import SaturationRule, weight_of
from intact.targets.spec import Forms


class PadChannels(SaturationRule):
    """QLinearConv(x, w) = QLinearConv(Pad(x), Pad(w, 0)): the channels added to the input meet weights that are 0."""

    exactness = EXACT
    creates = (("", "Pad"),)

    def __init__(self, saturates: bool = False, multiple: int = 2, outputs: int = 1, positions: int = 1) -> None:
        super().__init__(saturates)
        self._multiple, self._outputs, self._positions = multiple, outputs, positions

    def for_target(self, forms: Forms) -> Self:
        return type(self)(forms.saturates, *forms.direct_conv)

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (("", "QLinearConv"),))

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        return (
            self._not_short(found)
            or self._too_small(node.outputs[0])
            or not_constant(found)
            or _other_kernel(found)
            or self.pairs_saturate(weight_of(found.w), 0)
        )

    def _not_short(self, found: Product) -> str | None:
        """Refuse a convolution that a few channels more would not bring to the kernel."""
        shape = query.static_shape(found.w.q)
        if shape is None or len(shape) != 4:
            return "the kernel is for convolutions over two dimensions"
        if shape[1] % self._multiple == 0:
            return f"its input channels, {shape[1]}, are a multiple of {self._multiple}"
        if shape[0] < self._outputs:
            return f"it has {shape[0]} output channels, and the kernel is for {self._outputs} or more"
        return None

    def _too_small(self, output: ir.Value) -> str | None:
        """Refuse a convolution for which a copy of the input would cost more than the kernel gains."""
        shape = query.static_shape(output)
        if shape is None:
            return "the size of its output is unknown"
        positions = math.prod(shape[2:])
        return None if positions >= self._positions else f"it has {positions} positions, too few to copy its input for"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found, weight = product(node), query.known_constant(node.inputs[3])
        extra = -weight.shape[1] % self._multiple
        ends = np.array([[0, 0], [0, extra], [0, 0], [0, 0]])
        padded = op.Pad(found.x.q, op.constant(ends.T.reshape(-1).astype(np.int64), "pads"))
        described(padded, UINT8, _with_channels(found.x.q.shape, weight.shape[1] + extra))
        taps = op.constant(np.pad(weight, ends), "weight")
        return op.QLinearConv(padded, *node.inputs[1:3], taps, *node.inputs[4:], **node.attributes)


def _other_kernel(found: Product) -> str | None:
    """Refuse a convolution that would go to another kernel however many channels it had."""
    if (found.x.dtype, found.w.dtype) != (UINT8, INT8):
        return "the kernel is for uint8 activations with int8 weights"
    if found.group != 1:
        return f"the kernel is for one group, found {found.group}"
    return "the kernel is for weights whose zero point is 0" if found.w.zeros().any() else None


def _with_channels(shape: ir.Shape | None, channels: int) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[0], channels, *shape[2:]])
