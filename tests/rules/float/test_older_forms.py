"""Operators that a target lacks become older ones, and stay where it has them."""

from __future__ import annotations

import pytest

from intact.matching.rewriter import apply
from intact.rules.float import older_forms
from intact.rules.float.optimization import optimize
from intact.targets.registry import load_target
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

IMAGE = "(float[1, 3, 4, 5] x) => (float[1, 3, 1, 1] y)"
VECTOR = "(float[2, 64] x) => (float[2, 64] y)"


@pytest.mark.parametrize(
    ("rule", "body", "signature", "lacks"),
    [
        (older_forms.GeluToErf(), "y = Gelu (x)", VECTOR, "Gelu"),
        (older_forms.GeluToTanh(), 'y = Gelu <approximate = "tanh"> (x)', VECTOR, "Gelu"),
        (older_forms.GlobalPoolToMean(), "y = GlobalAveragePool (x)", IMAGE, "GlobalAveragePool"),
    ],
)
def test_the_older_form_computes_the_same(rule, body, signature, lacks):
    before = given(body, signature)
    done = apply(before.clone(), [rule])
    assert done.applications and lacks not in ops(done.model)
    assert difference(before, done.model) < 1e-6


@pytest.mark.parametrize(("device", "kept"), [("rknn", False), ("qnn", True)])
def test_only_a_target_that_lacks_the_operator_gets_the_older_form(device, kept):
    found = optimize(given("y = Gelu (x)", VECTOR), ops=load_target(device).has)
    assert ("Gelu" in ops(found.model)) is kept


def test_without_a_target_nothing_is_made_older():
    assert ops(optimize(given("y = Gelu (x)", VECTOR)).model) == ["Gelu"]
