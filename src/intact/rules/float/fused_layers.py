"""Operators that ONNX Runtime's optimizers fuse, taken apart into what grids and tables of other devices know."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query

MICROSOFT = "com.microsoft"
# Operators of one input that an activation may be in FusedConv and FusedGemm, with the names of their parameters.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
}


class FusedRule(Rule):
    """Takes one operator of ONNX Runtime's own domain apart, whatever inputs and outputs it has."""

    exactness = BOUNDED
    op: ClassVar[str]
    domain: ClassVar[str] = MICROSOFT

    def pattern(self, op: Patterns) -> Roots:
        inputs = op.each(Var("inputs", optional=True))
        return op.every_output(op.node(self.op, inputs, _domain=self.domain, _name="node"))


class TakeGeluApart(FusedRule):
    """com.microsoft.Gelu(x) = Gelu(x)."""

    op = "Gelu"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return op.Gelu(node.inputs[0])


class TakeBiasGeluApart(FusedRule):
    """BiasGelu(x, b) = Gelu(x + b)."""

    op = "BiasGelu"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return op.Gelu(op.Add(*node.inputs[:2]))


class TakeFastGeluApart(FusedRule):
    """FastGelu(x, b) = Gelu(x + b, approximate=tanh)."""

    op = "FastGelu"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        bias = query.input_(node, 1)
        return op.Gelu(node.inputs[0] if bias is None else op.Add(node.inputs[0], bias), approximate="tanh")


class TakeQuickGeluApart(FusedRule):
    """QuickGelu(x) = x · sigmoid(alpha · x)."""

    op = "QuickGelu"

    def check(self, node: ir.Node) -> str | None:
        return _no_float32(node.inputs[0])

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        alpha = op.constant(np.array(query.float_(node, "alpha", 1.702), np.float32), "alpha")
        return op.Mul(node.inputs[0], op.Sigmoid(op.Mul(node.inputs[0], alpha)))


class TakeMatMulApart(FusedRule):
    """FusedMatMul(a, b) = alpha · (aᵀ or a) · (bᵀ or b)."""

    op = "FusedMatMul"

    def check(self, node: ir.Node) -> str | None:
        if any(query.int_(node, name, 0) for name in ("transBatchA", "transBatchB")):
            return "it turns batches around"
        turned = [node.inputs[at] for at, name in enumerate(("transA", "transB")) if query.int_(node, name, 0)]
        if any((query.rank(value) or 0) < 2 for value in turned):
            return "the rank of what it transposes is unknown, or 1"
        return _no_float32(node.inputs[0])

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        a, b = (
            transposed(op, value) if value is not None and query.int_(node, name, 0) else value
            for value, name in zip(node.inputs, ("transA", "transB"), strict=True)
        )
        product, alpha = op.MatMul(a, b), query.float_(node, "alpha", 1.0)
        return product if alpha == 1.0 else op.Mul(product, op.constant(np.array(alpha, np.float32), "alpha"))


def transposed(op: Builder, value: ir.Value) -> ir.Value:
    """The value with its last two axes swapped."""
    rank = query.rank(value)
    assert rank is not None, "the rank was checked"
    return op.Transpose(value, perm=[*range(rank - 2), rank - 1, rank - 2])


class TakeSkipNormApart(FusedRule):
    """SkipLayerNormalization(x, y, w, b, c) = LayerNormalization(x + y + c, w, b)."""

    op = "SkipLayerNormalization"

    def check(self, node: ir.Node) -> str | None:
        used = any(not query.is_unused(output) for output in node.outputs[1:3])
        return "its mean or deviation is used" if used else None

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        bias = query.input_(node, 4)
        # As exporters write it: the bias belongs to the product in front.
        first = node.inputs[0] if bias is None else op.Add(node.inputs[0], bias)
        total = op.Add(first, node.inputs[1])
        epsilon = query.float_(node, "epsilon", 1e-12)
        result = op.LayerNormalization(total, node.inputs[2], query.input_(node, 3), axis=-1, epsilon=epsilon)
        return [result, result, result, total][: len(node.outputs)]


class TakeEmbeddingApart(FusedRule):
    """EmbedLayerNormalization(i, s) = LayerNormalization(words[i] + positions[p] + segments[s])."""

    op = "EmbedLayerNormalization"

    def check(self, node: ir.Node) -> str | None:
        shape = query.static_shape(node.inputs[0])
        if query.input_(node, 8) is None and (shape is None or not query.is_constant(node.inputs[3])):
            return "the length of the sequence, or the table of positions, is not known"
        if len(node.outputs) > 1 and not query.is_unused(node.outputs[1]) and query.input_(node, 7) is None:
            return "it gives lengths without a mask"
        return None

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        ids, segments, words, positions, table, scale, shift, mask, places = (query.input_(node, at) for at in range(9))
        total = op.Gather(words, ids)
        if segments is not None:
            total = op.Add(total, op.Gather(table, segments))
        total = op.Add(total, self._positions(op, ids, positions) if places is None else op.Gather(positions, places))
        epsilon = query.float_(node, "epsilon", 1e-12)
        result = op.LayerNormalization(total, scale, shift, axis=-1, epsilon=epsilon)
        lengths = result if mask is None else op.ReduceSum(mask, op.constant(np.array([1]), "axes"), keepdims=0)
        return [result, lengths, total][: len(node.outputs)]

    @staticmethod
    def _positions(op: Builder, ids: ir.Value | None, positions: ir.Value | None) -> ir.Value:
        """The first rows of the table of positions, one for each id."""
        length = query.known_shape(ids)[1]
        return op.constant(query.known_constant(positions)[:length], "positions")


class TakeConvApart(FusedRule):
    """FusedConv(x, w, b, z) = f(Conv(x, w, b) + z)."""

    op = "FusedConv"

    def check(self, node: ir.Node) -> str | None:
        return _no_activation(node)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        kept = {name: item for name, item in node.attributes.items() if not name.startswith("activation")}
        result, added = op.Conv(*node.inputs[:3], **kept), query.input_(node, 3)
        return _activated(op, node, result if added is None else op.Add(result, added))


class TakeGemmApart(FusedRule):
    """FusedGemm(a, b, c) = f(Gemm(a, b, c))."""

    op = "FusedGemm"

    def check(self, node: ir.Node) -> str | None:
        return _no_activation(node)

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        kept = {name: item for name, item in node.attributes.items() if not name.startswith("activation")}
        return _activated(op, node, op.Gemm(*node.inputs, **kept))


def _parameters(node: ir.Node) -> list[float]:
    """The parameters of the activation: a list in FusedConv, attributes of their own in FusedGemm."""
    listed = list(node.attributes.get_floats("activation_params", ()))
    names = (f"activation_{name}" for name in ("alpha", "beta", "gamma"))
    return listed or [query.float_(node, name, 0.0) for name in names if name in node.attributes]


def _no_activation(node: ir.Node) -> str | None:
    activation = query.string(node, "activation", "")
    if activation == "Clip":
        return None if len(_parameters(node)) == 2 else "its Clip has no two ends"
    wanted = _ACTIVATIONS.get(activation)
    if activation and (wanted is None or len(_parameters(node)) != len(wanted)):
        return f"its activation is {activation!r}, with {len(_parameters(node))} parameters"
    return None


def _activated(op: Builder, node: ir.Node, value: ir.Value) -> ir.Value:
    activation, parameters = query.string(node, "activation", ""), _parameters(node)
    if activation == "Clip":
        return op.Clip(value, *(op.constant(np.array(end, np.float32), "end") for end in parameters))
    if not activation:
        return value
    return op.node(activation, value, _attrs=dict(zip(_ACTIVATIONS[activation], parameters, strict=True)))


def _no_float32(value: ir.Value | None) -> str | None:
    known = value is not None and value.dtype == ir.DataType.FLOAT
    return None if known else "it does not compute in float32"
