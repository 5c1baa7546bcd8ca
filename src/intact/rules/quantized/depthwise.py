"""Depthwise convolutions with distinct zero points, which have no fast integer kernel: through exact floats.

`x - x_zero_point` and `w - z_c` have nine bits, so that every partial sum is a whole number, which float32 holds
exactly below 2^24. The sum goes to int32 and back before it is scaled: ONNX Runtime would fold the scale into the
weights of the convolution, and some results would round otherwise.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Attribute, Patterns, Roots
from intact.matching.rewriter import EXACT
from intact.model import query
from intact.numbers import integer
from intact.numbers.integer_types import FLOAT32_LEVELS
from intact.rules.quantized import integer_layers
from intact.rules.quantized.grid_relations import not_one_grid, not_one_type
from intact.rules.quantized.operand import INT32, described, dq_operand, output_operand, q_operand
from intact.rules.quantized.product import DistinctRule, Product, centred, matches, not_distinct, product
from intact.rules.quantized.to_qlinear import ConvToQLinear

FAMILY = "zero_points"

FLOAT = ir.DataType.FLOAT


class _ThroughFloat(DistinctRule):
    """The common part of the rules below; where uint8 × int8 saturates, for others without a kernel, too."""

    exactness = EXACT

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        reason = not_distinct(found) or not_one_type(input=found.x)
        if reason is not None:
            return reason
        if not found.is_depthwise:
            slower = None if self.saturates else "it is not depthwise: a copy of the input is faster"
            return self.has_kernel(found) or slower or too_large(found)
        return too_large(found)


class ConvThroughFloat(_ThroughFloat):
    """QLinearConv(x, w) = Q(float(int32(Conv(x - x_zero_point, w - z_c) + b)) · m): each sum is a whole float32."""

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (("", "QLinearConv"),))

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        if not query.is_constant(found.w.scale):
            return "the scale of the weight is computed, not constant"
        return super().check(node) or not_one_grid(input=found.x, output=output_operand(node, 6))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found, y = product(node), output_operand(node, 6)
        sums = whole_sums(op, found, query.input_(node, 8))
        scale = integer.multiplier(found.x.scales()[0], found.w.scales(), y.scales()[0])
        factor = op.constant(scale.reshape(_beside_positions(found)), "multiplier")
        return op.QuantizeLinear(op.Mul(op.Cast(sums, to=int(FLOAT)), factor), _one(op), y.grid(op)[1])


class ConvIntegerThroughFloat(_ThroughFloat):
    """ConvInteger(x, w) = int32(Conv(x - x_zero_point, w - z_c)): each sum is a whole float32."""

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (("", "ConvInteger"),))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return whole_sums(op, product(node), None)


class DepthwiseToQLinear(ConvToQLinear):
    """Q(Conv(DQ(x), DQ(w), b)) = QLinearConv(x, w, round(b / (x_scale · w_scale))), which conv_through_float takes."""

    def check(self, x: ir.Node, w: ir.Node, y: ir.Node, bias: ir.Value | None, conv: ir.Node) -> str | None:
        data, weight, output = dq_operand(x), dq_operand(w), q_operand(y)
        found = Product(conv, data, weight, 1, 1, query.int_(conv, "group", 1))
        if not found.is_depthwise:
            return "it is not depthwise: conv_to_qlinear takes it"
        return (
            not_distinct(found)
            or integer_layers.not_on_integers(data, weight, 0, output)
            or too_large(found)
            or integer_layers.not_a_bias(bias, data, weight, output.step, 0)
        )


def too_large(found: Product, bias: ir.Value | None = None) -> str | None:
    """Refuse a convolution whose sums, with a constant bias or without, may be no whole numbers in float32."""
    weight, levels = centred(found), query.constant(bias)
    rows = np.abs(weight).reshape(len(weight), -1).sum(axis=1)
    added = 0 if levels is None else int(np.abs(levels.astype(np.int64)).max(initial=0))
    largest = int(rows.max(initial=0)) * found.x.reach + added
    return None if largest < FLOAT32_LEVELS else f"sums may reach {largest}, beyond the whole numbers of float32"


def whole_sums(op: Builder, found: Product, bias: ir.Value | None) -> ir.Value:
    """The int32 sums of a convolution, computed in floats; a bias that floats may not hold is added to them."""
    real = described(op.DequantizeLinear(found.x.q, _one(op), found.x.zero_point), FLOAT, found.x.q.shape)
    levels = None if too_large(found, bias) else query.constant(bias)
    added = None if levels is None else op.constant(levels.astype(np.float32), "bias")
    sums = op.Cast(_convolved(op, found, real, added), to=int(INT32))
    if bias is None or added is not None:
        return sums
    return op.Add(sums, op.Reshape(bias, op.constant(np.array(_beside_positions(found)), "shape")))


def _convolved(op: Builder, found: Product, real: ir.Value, added: ir.Value | None) -> ir.Value:
    """The convolution in floats; along one dimension it is one along two, for which runtimes have faster kernels."""
    weight, attributes = centred(found).astype(np.float32), found.node.attributes
    if weight.ndim != 3:
        return op.Conv(real, op.constant(weight, "weight"), added, **attributes)
    each = [name for name in ("kernel_shape", "strides", "dilations") if name in attributes]
    wider: dict[str, Attribute] = {name: (1, *query.ints(found.node, name)) for name in each}
    if "pads" in attributes:
        before, after = query.ints(found.node, "pads")
        wider["pads"] = (0, before, 0, after)
    axis = op.constant(np.array([2]), "axis")
    wide = op.Unsqueeze(real, axis)
    return op.Squeeze(op.Conv(wide, op.constant(weight[:, :, None], "weight"), added, **{**attributes, **wider}), axis)


def _one(op: Builder) -> ir.Value:
    """The scale of a grid that holds whole numbers as they are."""
    return op.constant(np.array(1, np.float32), "one")


def _beside_positions(found: Product) -> list[int]:
    """The shape in which one number for each output channel broadcasts over the positions of a convolution."""
    return [-1, *[1] * (centred(found).ndim - 2)]
