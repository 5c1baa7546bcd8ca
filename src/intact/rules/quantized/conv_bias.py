"""Constants after a float Conv between Q/DQ nodes: they go into the grid of its weight and into its int32 bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.occurrence import producer
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import WITHIN_ONE_STEP, LocalRule
from intact.model import query
from intact.model.node_encodings import constant_behind
from intact.numbers.integer_types import INT32_MAX
from intact.rules.quantized import affine, integer_layers
from intact.rules.quantized.affine import Affine
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import Operand, dequantized, dq_operand, q_operand, quantized

FAMILY = "bias"


class FoldArithmeticIntoConv(LocalRule):
    """Q(Conv(DQ(x), DQ(w), b) ± c) = Q(Conv(DQ(x), DQ(w), b ± c)) within one step; · and / go into the scale of w."""

    exactness = WITHIN_ONE_STEP

    def pattern(self, op: Patterns, c: Var) -> Roots:
        return quantized(op, op.node(affine.ARITHMETIC, _conv(op), c, _name="node"), "last")

    def check(self, conv: ir.Node, node: ir.Node, last: ir.Node) -> str | None:
        folded = _fold(conv, node, q_operand(last))
        return folded if isinstance(folded, str) else None

    def rewrite(self, op: Builder, conv: ir.Node, node: ir.Node, last: ir.Node) -> ir.Value:
        folded = _fold(conv, node, q_operand(last))
        assert not isinstance(folded, str), f"the constants were checked: {folded}"
        weight = conv.inputs[1] if folded.scales is None else rescaled(op, folded.w, folded.scales)
        result = op.Conv(conv.inputs[0], weight, _bias(op, folded), **conv.attributes)
        return op.like(last, result, *last.inputs[1:])


class FoldNormIntoConv(FoldArithmeticIntoConv):
    """Q(BN(Conv(DQ(x), DQ(w), b))) = Q(Conv(DQ(x), DQ(w′), b′)) within one step, with BN in scales and bias."""

    def pattern(self, op: Patterns, gamma: Var, beta: Var, mean: Var, var: Var) -> Roots:  # type: ignore[override]
        return quantized(op, op.BatchNormalization(_conv(op), gamma, beta, mean, var, _name="node"), "last")


@dataclass(frozen=True, slots=True, eq=False)
class _Folded:
    """A bias in steps of the accumulator, and the scales of the weight where they change."""

    w: Operand
    scales: np.ndarray | None
    levels: np.ndarray
    steps: np.ndarray


def _conv(op: Patterns) -> Output:
    return op.Conv(dequantized(op, "x"), dequantized(op, "w"), Var("b", optional=True), _name="conv")


def _fold(conv: ir.Node, node: ir.Node, y: Operand) -> _Folded | str:
    """Work out the weight and bias that do the work of the node after the convolution, or say why there are none."""
    x, w = (dq_operand(producer(value)) for value in conv.inputs[:2] if value is not None)
    shape = query.static_shape(w.q)
    doubt = not_one_grid(input=x, output=y) or unknown_weight(w, shape)
    if doubt is not None or shape is None:
        return doubt or "the shape of the weight is unknown"
    found = affine.of_node(node, shape[0], len(shape))
    if isinstance(found, str):
        return found
    bias = np.zeros(shape[0])
    if query.input_(conv, 2) is not None:
        given = constant_behind(conv.inputs[2])
        if given is None:
            return "the bias is computed, not constant"
        bias = given.astype(np.float64)
    return _in_steps(x, w, y, found, bias)


def _in_steps(x: Operand, w: Operand, y: Operand, found: Affine, bias: np.ndarray) -> _Folded | str:
    scales = (np.broadcast_to(w.scales(), bias.shape) * found.factor).astype(np.float32)
    steps = np.asarray(x.scales()[0] * scales)
    if not (steps > 0).all() or steps.max() > y.known_step:
        return f"a step of the accumulator is {steps.max():.6g}, a step of the output {y.known_step:.6g}"
    levels = np.rint((bias * found.factor + found.shift) / steps)
    if not (np.abs(levels) <= INT32_MAX).all():
        return f"the bias would be {np.abs(levels).max():.6g} steps of the accumulator, more than int32 holds"
    # Accumulators of 16-bit activations are wider than int32 wherever there is a kernel for them.
    doubt = integer_layers.overflow(x, w, 0, levels) if x.dtype is not None and x.dtype.bitwidth <= 8 else None
    doubt = doubt or integer_layers.lost_in_float(x, w, 0, y, float(found.factor.max()))
    return doubt or _Folded(w, None if (found.factor == 1).all() else scales, levels.astype(np.int32), steps)


def unknown_weight(w: Operand, shape: tuple[int, ...] | None, axis: int = 0) -> str | None:
    """Refuse a weight that is not constant, or whose scales are not along the axis of its output channels."""
    scales = query.constant(w.scale)
    if scales is None or not query.is_constant(w.q) or shape is None:
        return "the weight or its scale is computed, not constant"
    if w.zero_point is not None and not query.is_constant(w.zero_point):
        return "the zero point of the weight is computed, not constant"
    if w.block_size or (scales.size > 1 and w.axis % len(shape) != axis):
        return "the scales of the weight are not one for each output channel"
    return None


def rescaled(op: Builder, w: Operand, scales: np.ndarray) -> ir.Value:
    """The same integers on a grid with one scale for each output channel."""
    zeros = np.broadcast_to(w.zeros(), scales.shape).astype(w.known_dtype.numpy())
    constants = op.constant(scales, "weight_scale"), op.constant(zeros, "weight_zero_point")
    return op.DequantizeLinear(w.q, *constants, axis=0)


def _bias(op: Builder, folded: _Folded) -> ir.Value:
    zeros = np.zeros(folded.levels.shape, np.int32)
    grid = op.constant(folded.steps, "bias_scale"), op.constant(zeros, "bias_zero_point")
    return op.DequantizeLinear(op.constant(folded.levels, "bias"), *grid, axis=0)
