"""Values between grids that other tools leave in float: an NPU computes a layer in integers if all of it has grids."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, LocalRule
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.conv_bias import unknown_weight
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.movement import MovementRule
from intact.rules.quantized.operand import Operand, dequantized, dq_operand

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


class QuantizeBias(LocalRule):
    """L(DQ(x), DQ(w), b) = L(DQ(x), DQ(w), DQ(q)) to a step of the sums, for a layer L and a constant bias b."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, bias: Var) -> Roots:
        return op.node(_LAYERS, dequantized(op, "x"), dequantized(op, "w"), bias, _name="node")

    def check(self, x: ir.Node, w: ir.Node, node: ir.Node, bias: ir.Value) -> str | None:
        if not query.is_constant(bias):
            return "the bias is not a constant in float"
        if _is_scaled(node) or (node.op_type == "ConvTranspose" and query.int_(node, "group", 1) > 1):
            return "its sums are not in steps of one channel of the weight"
        left, right, axis = dq_operand(x), dq_operand(w), _channel_axis(node)
        doubt = not_one_grid(input=left) or unknown_weight(right, query.static_shape(right.q), axis)
        return doubt or _too_large(left, right, bias, axis)

    def rewrite(self, op: Builder, x: ir.Node, w: ir.Node, node: ir.Node, bias: ir.Value) -> ir.Value:
        left, right = dq_operand(x), dq_operand(w)
        steps = integer_layers.step(left, right)
        levels = integer_layers.known_levels(bias, steps, right, _channel_axis(node))
        return op.like(node, *node.inputs[:2], integer_layers.dequantized_bias(op, levels, steps))


class RoundAfterMove(MovementRule):
    """move(DQ(x, s, z)) = DQ(Q(move(DQ(x, s, z)), s, z), s, z): what is on a grid stays there."""

    # What reads the result decides, and that may change with every other rewrite.
    is_local = False

    def pattern(self, op: Patterns) -> Roots:
        return self._moves(op, dequantized(op, "first"))

    def check(self, first: ir.Node, move: ir.Node) -> str | None:
        readers = move.outputs[0].consumers()
        if not readers or any(reader.op_type == "QuantizeLinear" for reader in readers):
            return "its result has a grid, or no node reads it"
        if query.is_constant(first.inputs[0]):
            return "it moves a constant"
        return self._no_kernel(move, dq_operand(first))

    def rewrite(self, op: Builder, first: ir.Node, move: ir.Node) -> ir.Value:
        grid = dq_operand(first).grid(op)
        return op.DequantizeLinear(op.QuantizeLinear(op.like(move, *move.inputs), *grid), *grid)


class RoundAfterRelu(RoundAfterMove):
    """Relu(DQ(x, s, z)) = DQ(Q(Relu(DQ(x, s, z)), s, z), s, z): every grid has the 0 that it writes."""

    ops: ClassVar[tuple[str, ...]] = ("Relu",)


def _channel_axis(node: ir.Node) -> int:
    """The axis of a layer's weight that holds its output channels."""
    return {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, integer_layers.gemm_axis(node))


def _is_scaled(node: ir.Node) -> bool:
    """True for a Gemm that multiplies its sums or its bias by a number of its own."""
    return any(query.float_(node, name, 1.0) != 1.0 for name in ("alpha", "beta"))


def _too_large(x: Operand, w: Operand, bias: ir.Value, axis: int) -> str | None:
    """Refuse a bias that int32 does not hold in steps of the sums, alone or together with sums of 8 bits."""
    levels = integer_layers.bias_levels(bias, integer_layers.step(x, w), query.known_shape(w.q)[axis])
    if isinstance(levels, str):
        return levels
    # Sums of 16-bit activations are wider than int32 wherever there is a kernel for them.
    narrow = x.dtype is not None and x.dtype.bitwidth <= 8
    return integer_layers.overflow(x, w, axis, np.rint(levels)) if narrow else None
