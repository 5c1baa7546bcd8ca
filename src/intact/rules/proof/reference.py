"""Products that ONNX Runtime refuses, in a slow form that every version of it runs, to compare others with.

`Σ x·(w - z_c) = Σ x·w - z_c · Σ x`: the textbook correction term, in int32 throughout. It shares no arithmetic with
the rewrites that are held against it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching import rewriter
from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots
from intact.matching.rewriter import EXACT, LocalRule, Rule
from intact.model import query, shapes
from intact.model.copying import copied
from intact.numbers import integer
from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import INT32, output_operand
from intact.rules.quantized.operator_signs import MatchWeightSign, UnsignWeight
from intact.rules.quantized.product import CONVOLUTIONS, MATRICES, Product, matches, not_distinct, product
from intact.rules.quantized.zero_points import UniteZeroPoints
from intact.settings.devices import HOST
from intact.targets.registry import load_target
from intact.targets.spec import Forms


class CorrectConvInteger(LocalRule):
    """ConvInteger(x, w - z_c) = ConvInteger(x, w) - z_c · ConvInteger(x, 1)."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (("", "ConvInteger"),))

    def check(self, node: ir.Node) -> str | None:
        return not_distinct(product(node))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        return _sums(op, product(node))


class CorrectQLinearConv(LocalRule):
    """QLinearConv(x, w - z_c) = Q((ConvInteger(x, w) - z_c · ConvInteger(x, 1) + b) · m)."""

    exactness = EXACT

    def pattern(self, op: Patterns) -> Roots:
        return matches(op, (("", "QLinearConv"),))

    def check(self, node: ir.Node) -> str | None:
        found = product(node)
        known = query.is_constant(found.w.scale)
        reason = None if known else "the scale of the weight is computed, not constant"
        return not_distinct(found) or reason or not_one_grid(input=found.x, output=output_operand(node, 6))

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        found, y, bias = product(node), output_operand(node, 6), query.input_(node, 8)
        sums = _sums(op, found)
        if bias is not None:
            sums = op.Add(sums, op.Reshape(bias, op.constant(np.array(_shape(found)), "shape")))
        scale = integer.multiplier(found.x.scales()[0], found.w.scales(), y.scales()[0])
        factor = op.constant(scale.reshape(_shape(found)), "multiplier")
        one = op.constant(np.array(1, np.float32), "one")
        return op.QuantizeLinear(op.Mul(op.Cast(sums, to=int(ir.DataType.FLOAT)), factor), one, y.grid(op)[1])


def _sums(op: Builder, found: Product) -> ir.Value:
    weight = query.known_constant(found.w.q)
    ones = op.constant(np.ones_like(weight), "ones")
    plain, inputs = (
        op.ConvInteger(found.x.q, factors, found.x.zero_point, **found.node.attributes) for factors in (found.w.q, ones)
    )
    zeros = op.constant(found.w.zeros().reshape(_shape(found)).astype(INT32.numpy()), "zero_points")
    return op.Sub(plain, op.Mul(inputs, zeros))


def _shape(found: Product) -> list[int]:
    rank = query.rank(found.w.q)
    assert rank is not None, "a constant has a rank"
    return [-1, *[1] * (rank - 2)]


_RULES: dict[str, tuple[Rule, ...]] = {
    "ConvInteger": (UniteZeroPoints(), CorrectConvInteger()),
    "QLinearConv": (CorrectQLinearConv(),),
}


# Operators whose kernels saturate on some processors.
_PRODUCTS = frozenset(op for _, op in (*CONVOLUTIONS, *MATRICES))


def _multiplies_both_signs(node: ir.Node) -> bool:
    """True for a product of int8 with uint8."""
    if node.op_type not in _PRODUCTS:
        return False
    found = product(node)
    return (found.x.dtype, found.w.dtype) == (ir.DataType.INT8, ir.DataType.UINT8)


def runnable(model: ir.Model, version: str | None = None) -> ir.Model:
    """`model` itself, or a copy of it that ONNX Runtime (of this version) runs, with the integers that it stands for.

    Where the processor's kernels for uint8 × int8 saturate, weights are uint8: a model means the same everywhere.
    """
    forms = load_target(HOST, ort=version).rewrite
    if runs_as_it_is(model, version):
        return model
    refused = forms.refuses_distinct
    rules = [rule for op, some in _RULES.items() if op in refused for rule in some]
    exact: list[Rule] = [UnsignWeight(saturates=True)] if forms.saturates else []
    wanted = _changed_in_part(forms)
    mixed = [MatchWeightSign()] if any(map(_multiplies_both_signs, query.all_nodes(model))) else []
    products = (node for node in query.all_nodes(model) if node.op_type in wanted | _PRODUCTS)
    # A model as it was given may have constants of no known type.
    is_typed = all(value is None or value.dtype is not None for node in products for value in node.inputs)
    rules = [*mixed, *rules, *exact]
    if is_typed and not rewriter.could_fire(model, rules):
        return model
    copy = copied(model)
    if not is_typed:
        shapes.infer_shapes(copy)
    done = rewriter.apply(copy, rules)
    return done.model if done.applications else model


def runs_as_it_is(model: ir.Model, version: str | None = None) -> bool:
    """True if no operator of a model is one that ONNX Runtime refuses, or computes in another way, in some cases."""
    wanted = _changed_in_part(load_target(HOST, ort=version).rewrite)
    return not any(node.op_type in wanted or _multiplies_both_signs(node) for node in query.all_nodes(model))


def _changed_in_part(forms: Forms) -> frozenset[str]:
    """The operators of which some have to be written in another way."""
    return forms.refuses_distinct | (_PRODUCTS if forms.saturates else frozenset())
