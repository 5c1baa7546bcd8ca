"""The stage as a whole: a copy, a fixpoint, the same function."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from intact.matching.rewriter import Rule
from intact.model import normalize, upgrade
from intact.rules.float.optimization import RARE, RULES, optimize
from tests.model.small import ops
from tests.rules.float.before_after import difference, given
from tests.zoo import cnn, transformer

SIGNATURE = "(float[2,3] x) => (float[2,3] y)"
GELU = "a = Div(x, c)\n f = Erf(a)\n g = Add(f, one)\n h = Mul(x, g)\n y = Mul(h, half)"
CONSTANTS = "float c = {1.4142135}, float one = {1}, float half = {0.5}"


def test_the_given_model_stays_as_it_is():
    before = given("a = Identity(x)\n y = Relu(a)", SIGNATURE)
    assert ops(optimize(before).model) == ["Relu"]
    assert ops(before) == ["Identity", "Relu"]


def test_constants_that_rules_uncover_are_folded_and_dead_nodes_removed():
    body = "k = Constant <value_float = 2.0> ()\n d = Dropout(k)\n e = Exp(d)\n u = Neg(x)\n y = Mul(x, e)"
    result = optimize(given(body, SIGNATURE)).model
    assert ops(result) == ["Mul"]
    assert list(result.graph.initializers) == ["e"]


def test_a_fusion_that_the_target_lacks_is_not_made():
    before = given(GELU, SIGNATURE, CONSTANTS)
    assert ops(optimize(before).model) == ["Gelu"]
    lacking = optimize(before, ops=lambda domain, op_type: op_type != "Gelu")
    assert ops(lacking.model) == ["Div", "Erf", "Add", "Mul", "Mul"]


def test_every_rule_has_an_equation_a_claim_and_a_name_of_its_own():
    rules = (*RULES, *RARE)
    for rule in rules:
        assert "=" in (type(rule).__doc__ or "")
        assert isinstance(rule, Rule)
        assert rule.exactness
    assert len({rule.name for rule in rules}) == len(rules)


@pytest.mark.parametrize("build", [cnn.residual_cnn, cnn.depthwise_cnn, transformer.bert, transformer.vit])
def test_a_model_keeps_its_numbers_and_optimizing_twice_changes_nothing(build):
    model = upgrade.upgrade(normalize.normalize(ir.from_proto(build()))).model
    first = optimize(model)
    assert first.applications
    assert len(first.model.graph) < len(model.graph)
    assert difference(model, first.model) < 1e-5
    second = optimize(first.model)
    assert second.applications == ()
    assert ops(second.model) == ops(first.model)
