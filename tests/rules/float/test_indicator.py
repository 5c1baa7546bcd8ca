"""A marked Cast from bool to float moves up to where the mask comes from."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching.rewriter import apply
from intact.rules.discovery import rules_of
from intact.rules.float import indicator
from intact.rules.float.indicator import is_indicator
from intact.rules.float.masks import INDICATOR, MARK
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

RULES = rules_of(indicator)

SIGNATURE = "(int64[2,3] m, int64[2,3] k) => (float[2,3] y)"
CASES = {
    "cast_and": ("a = Cast <to = 9> (m)\n b = Cast <to = 9> (k)\n c = And(a, b)", ["Cast", "Cast", "Mul"]),
    "cast_or": ("a = Cast <to = 9> (m)\n b = Cast <to = 9> (k)\n c = Or(a, b)", ["Cast", "Cast", "Max"]),
    "cast_not": ("a = Cast <to = 9> (m)\n c = Not(a)", ["Cast", "Sub"]),
    "cast_move": ("a = Cast <to = 9> (m)\n c = Reshape(a, shape)", ["Cast", "Reshape"]),
    "cast_truth": ("c = Cast <to = 9> (m)", ["Cast"]),
    "cast_truth of one": ("c = Equal(m, one)", ["Cast"]),
    "cast_truth above zero": ("c = Greater(m, zero)", ["Cast"]),
    "cast_truth from one": ("c = GreaterOrEqual(m, one)", ["Cast"]),
    "cast_falsehood": ("c = Equal(zero, m)", ["Cast", "Sub"]),
    "cast_falsehood below one": ("c = Less(m, one)", ["Cast", "Sub"]),
    "cast_falsehood to zero": ("c = LessOrEqual(m, zero)", ["Cast", "Sub"]),
    "cast_product": ("a = Mul(m, k)\n c = Cast <to = 9> (a)", ["Cast", "Cast", "Mul"]),
}
CONSTANTS = {"zero": np.int64(0), "one": np.int64(1), "shape": np.array([2, 3])}


def marked(body: str, **arrays: np.ndarray):
    """The model with a Cast of `c` to float at its end that is marked as a mask."""
    used = {name: array for name, array in CONSTANTS.items() if f"{name})" in body or f"({name}" in body}
    result = given(body + "\n y = Cast <to = 1> (c)", SIGNATURE, **used, **arrays)
    result.graph[-1].metadata_props[MARK] = INDICATOR
    return result


@pytest.mark.parametrize("case", CASES)
def test_it_fires_and_keeps_the_numbers(case):
    body, expected = CASES[case]
    result = apply(marked(body), RULES)
    assert case.split()[0] in {item.rule for item in result.applications}
    assert ops(result.model) == expected
    assert difference(marked(body), result.model, seed=1) == 0


@pytest.mark.parametrize("case", CASES)
def test_it_refuses_a_cast_that_is_not_marked(case):
    before = marked(CASES[case][0])
    before.graph[-1].metadata_props.clear()
    result = apply(before, RULES)
    assert result.applications == ()
    assert {item.reason for item in result.refusals} == {"the result is no mask of attention"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("r = Neg(m)\n c = Cast <to = 9> (r)", "Neg 'r' is not known to hold 0 and 1 only"),
        ("r = Add(m, k)\n c = Equal(r, zero)", "Add 'r' is not known to hold 0 and 1 only"),
        (
            "g = Gather <axis = 0> (table, m)\n c = Cast <to = 9> (m)",
            "graph input 'm' also indexes Gather 'g', so that it is no mask of 0 and 1",
        ),
    ],
)
def test_it_refuses_what_may_hold_other_numbers(body, reason):
    arrays = {"table": np.arange(4)} if "table" in body else {}
    before = marked(body, **arrays)
    assert reason in {item.reason for item in apply(before, RULES).refusals}
    assert "Cast" in ops(before)


@pytest.mark.parametrize(
    ("constant", "fires"), [(np.ones((2, 3), bool), True), (np.array([[True], [False]]), False)], ids=["true", "mixed"]
)
def test_a_neutral_operand_goes_and_the_shape_stays(constant, fires):
    before = given("a = Cast <to = 9> (m)\n y = And(a, t)", "(int64[1,3] m) => (bool[2,3] y)", t=constant)
    result = apply(before, RULES)
    assert ops(result.model) == ["Cast", "Expand" if fires else "And"]
    reasons = [] if fires else ["constant 't' is not true throughout"]
    assert [item.reason for item in result.refusals if item.rule == "drop_neutral_operand"] == reasons


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("c = Cast <to = 1> (m)", True),
        ("a = Cast <to = 1> (m)\n c = Sub(one, a)", True),
        ("a = Cast <to = 1> (m)\n c = Sub(two, a)", False),
        ("a = Cast <to = 1> (m)\n c = Mul(a, a)", True),
        ("a = Cast <to = 1> (m)\n c = Mul(a, two)", False),
        ("a = Cast <to = 1> (m)\n c = Exp(a)", False),
    ],
)
def test_an_indicator_is_known_by_its_structure(body, expected):
    arrays = {"one": np.float32(1), "two": np.float32(2)}
    used = {name: array for name, array in arrays.items() if name in body}
    model = given(body, "(int64[2,3] m) => (float[2,3] c)", **used)
    assert is_indicator(model.graph.outputs[0]) is expected
