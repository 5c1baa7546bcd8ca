"""What does nothing goes away; graph outputs keep their names."""

from __future__ import annotations

import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import identity
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(identity)

ONE = "(float[4] x) => (float[4] y)"
TWO = "(float[4] x) => (float[4] y, float[4] v)"
NO_TRAINING = "float ratio = {0.5}, bool off = {0}, bool on = {1}"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Identity(x)\n y = Relu(a)", ["Relu"]),
        ("a = Relu(x)\n y = Identity(a)", ["Relu"]),
        ("a = Identity(x)\n b = Identity(a)\n c = Relu(b)\n y = Identity(c)", ["Relu"]),
        ("a = Dropout(x)\n y = Relu(a)", ["Relu"]),
        ("a, m = Dropout(x, ratio, off)\n y = Relu(a)", ["Relu"]),
    ],
)
def test_it_fires_and_keeps_the_numbers(body, left):
    result = rewritten(RULES, body, ONE, NO_TRAINING).model
    assert ops(result) == left
    assert [value.name for value in result.graph.outputs] == ["y"]
    assert difference(given(body, ONE, NO_TRAINING), result) == 0


@pytest.mark.parametrize(
    ("body", "signature", "reason"),
    [
        ("y = Identity(x)", ONE, "graph output 'y' and graph input 'x' need a name each"),
        ("v = Relu(x)\n y = Identity(v)", TWO, "graph output 'y' and Relu 'v' need a name each"),
        ("a = Dropout(x, ratio, on)\n y = Relu(a)", ONE, "training_mode is constant 'on', and not known to be false"),
    ],
)
def test_it_refuses_with_a_reason(body, signature, reason):
    result = rewritten(RULES, body, signature, NO_TRAINING)
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()


def test_a_dropout_whose_mask_is_used_stays():
    signature = "(float[4] x) => (float[4] y, bool[4] m)"
    assert rewritten(RULES, "y, m = Dropout(x)", signature).applications == ()


NEUTRAL = "float[1,1] nothing = {0}, float[4] nothings = {0, 0, 0, 0}, float one = {1}, float[4] most = {1, 1, 1, 2}"


@pytest.mark.parametrize(
    "operation", ["Add(nothing, x)", "Sub(x, nothings)", "Mul(x, one)", "Div(x, one)", "Add(x, nothings)"]
)
def test_a_neutral_constant_goes_and_the_numbers_stay(operation):
    signature = "(float[2,4] x) => (float[2,4] y)"
    body = f"a = {operation}\n y = Neg(a)"
    result = rewritten(RULES, body, signature, NEUTRAL)
    assert [item.rule for item in result.applications] == ["drop_neutral_constant"]
    assert ops(result.model) == ["Neg"]
    assert difference(given(body, signature, NEUTRAL), result.model) == 0


@pytest.mark.parametrize(
    ("body", "signature", "reason"),
    [
        ("y = Add(x, nothing)", "(float[4] x) => (float[1,4] y)", "constant 'nothing' may change the shape"),
        ("y = Sub(x, nothings)", "(float[2,1] x) => (float[2,4] y)", "constant 'nothings' may change the shape"),
        ("y = Mul(x, most)", ONE, "constant 'most' is not 1 throughout"),
        ("y = Add(x, one)", ONE, "constant 'one' is not 0 throughout"),
    ],
)
def test_a_constant_with_an_effect_stays(body, signature, reason):
    result = rewritten(RULES, body, signature, NEUTRAL)
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()
