"""Linear layers on rows of vectors, for targets that have them in integers on matrices only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, upgrade
from intact.pipeline.preparation import optimize_for
from intact.rules.float import optimization
from intact.rules.float.flat_linear import FlattenBiasedLinear, FlattenLinear, NegateProduct
from intact.settings.config import QuantConfig
from intact.targets.registry import known_backends, load_target
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten
from tests.zoo.transformer import bert

RULES = [FlattenBiasedLinear(), FlattenLinear(), NegateProduct()]
FLAT = ["Reshape", "Gemm", "Reshape"]
VECTORS = "(float[2, 3, 8] x) => (float[2, 3, 5] y)"


def drawn(**shapes):
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("bias", [(5,), (1, 5), (1, 1, 5)])
def test_a_layer_with_a_bias_becomes_one_gemm_and_keeps_the_numbers(bias):
    case = ("m = MatMul(x, w)\n y = Add(b, m)", VECTORS, ""), drawn(w=(8, 5), b=bias)
    found = rewritten(RULES, *case[0], **case[1])
    assert ops(found.model) == FLAT
    assert [application.rule for application in found.applications] == ["flatten_biased_linear"]
    assert difference(given(*case[0], **case[1]), found.model) < 1e-6


@pytest.mark.parametrize("signature", [VECTORS, "(float[1, 2, 3, 8] x) => (float[1, 2, 3, 5] y)"])
def test_a_layer_without_a_bias_becomes_one_gemm_and_keeps_the_numbers(signature):
    arrays = drawn(w=(8, 5))
    found = rewritten(RULES, "y = MatMul(x, w)", signature, **arrays)
    assert ops(found.model) == FLAT
    assert difference(given("y = MatMul(x, w)", signature, **arrays), found.model) < 1e-6


def test_a_sum_that_is_no_bias_stays_behind_the_gemm():
    arrays = drawn(w=(8, 5), b=(3, 5))
    body = "m = MatMul(x, w)\n y = Add(m, b)"
    found = rewritten(RULES, body, VECTORS, **arrays)
    assert ops(found.model) == [*FLAT, "Add"]
    assert difference(given(body, VECTORS, **arrays), found.model) < 1e-6
    refused = rewritten([FlattenBiasedLinear()], body, VECTORS, **arrays)
    assert refused.refusals[0].reason == "constant 'b' is not one number for each column of constant 'w'"


@pytest.mark.parametrize(
    ("signature", "weight", "reason"),
    [
        ("(float[n, 3, 8] x) => (float[n, 3, 5] y)", (8, 5), "the shape of graph input 'x' is not known"),
        (VECTORS, (2, 8, 5), "constant 'w' is not one matrix"),
    ],
)
def test_it_refuses(signature, weight, reason):
    found = rewritten([FlattenLinear()], "y = MatMul(x, w)", signature, **drawn(w=weight))
    assert ops(found.model) == ["MatMul"]
    assert found.refusals[0].reason == reason


ATTENTION = "(float[2, 3, 4] a, float[2, 4, 8] c) => (float[6, 5] y)"
SHAPE = "int64[2] s = {6, 8}"


def test_a_layer_behind_a_product_of_computed_values_reads_it_negated_and_gives_the_same_bits():
    body = "p = MatMul(a, c)\n r = Reshape(p, s)\n y = Gemm(r, w, b)"
    arrays = drawn(w=(8, 5), b=(5,))
    found = rewritten(RULES, body, ATTENTION, SHAPE, **arrays)
    assert ops(found.model) == ["MatMul", "Neg", "Reshape", "Gemm"]
    assert difference(given(body, ATTENTION, SHAPE, **arrays), found.model) == 0


def test_a_layer_behind_anything_else_reads_it_as_it_is():
    found = rewritten(RULES, "r = Relu(x)\n y = Gemm(r, w)", "(float[6, 8] x) => (float[6, 5] y)", **drawn(w=(8, 5)))
    assert ops(found.model) == ["Relu", "Gemm"]
    assert found.refusals[0].reason == "it does not read a product of two values that are computed"


@pytest.fixture(scope="module")
def encoder() -> ir.Model:
    return normalize.normalize(upgrade.upgrade(ir.from_proto(bert())).model)


@pytest.mark.parametrize("device", known_backends())
def test_linear_layers_are_flat_where_integers_need_it_alone(encoder, device):
    target = load_target(device)
    integers = optimize_for(encoder, target, QuantConfig())
    floats = optimize_for(encoder, target, None)
    rules = {item.rule for item in integers.applications} & {rule.name for rule in RULES}
    assert rules == ({"flatten_biased_linear", "negate_product"} if device == "rknn" else set())
    assert not {item.rule for item in floats.applications} & {rule.name for rule in RULES}


def test_an_encoder_on_flat_layers_computes_the_same_in_as_many_products(encoder):
    flat = optimization.optimize(encoder, ops=load_target("rknn").has, asked=RULES).model
    # Two products of attention in each of two layers are left; a query, a key and a value read the same rows.
    assert ops(flat).count("MatMul") == 4 and ops(flat).count("Gemm") == 2 * 6 + 2
    assert ops(flat).count("Neg") == 2
    assert difference(encoder, flat, scale=1.0) < 1e-5
