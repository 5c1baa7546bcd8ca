"""Reciprocals become divisions, and products with them quotients."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import division
from intact.rules.float.optimization import optimize
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(division)

SIGNATURE = "(float[2,4] x, float[2,1] s) => (float[2,4] y)"
ROOT = "a = Abs(s)\n r = Sqrt(a)\n "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ROOT + "i = Reciprocal(r)\n y = Mul(x, i)", ["Abs", "Sqrt", "Div"]),
        (ROOT + "i = Reciprocal(r)\n y = Mul(i, x)", ["Abs", "Sqrt", "Div"]),
        (ROOT + "i = Div(one, r)\n y = Mul(x, i)", ["Abs", "Sqrt", "Div"]),
        (ROOT + "i = Reciprocal(r)\n y = Add(x, i)", ["Abs", "Sqrt", "Div", "Add"]),
    ],
)
def test_a_reciprocal_becomes_a_division(body, expected):
    arrays = {"one": np.float32(1)} if "one" in body else {}
    result = rewritten(RULES, body, SIGNATURE, **arrays)
    assert ops(result.model) == expected
    assert difference(given(body, SIGNATURE, **arrays), result.model) < 1e-6


@pytest.mark.parametrize(
    ("body", "arrays", "reason"),
    [
        ("i = Div(one, c)\n y = Mul(x, i)", {"c": np.float32([[2], [3]])}, "the divisor is a constant"),
        (
            "r = Squeeze(s, axes)\n i = Div(one, r)\n y = Mul(x, i)",
            {"one": np.ones((1, 1), np.float32), "axes": np.array([0])},
            "the inverse may have more dimensions than the divisor",
        ),
    ],
)
def test_a_product_with_an_inverse_stays_where_a_quotient_would_not_do(body, arrays, reason):
    signature = "(float[1,4] x, float[1,4] s) => (float[1,4] y)" if "Squeeze" in body else SIGNATURE
    result = rewritten(RULES, body, signature, **({"one": np.float32(1)} | arrays))
    assert reason in {item.reason for item in result.refusals}
    assert "mul_by_inverse" not in {item.rule for item in result.applications}


def test_an_inverse_that_something_else_reads_stays():
    body = ROOT + "i = Div(one, r)\n m = Mul(x, i)\n y = Add(m, i)"
    assert ops(rewritten(RULES, body, SIGNATURE, one=np.float32(1)).model) == ["Abs", "Sqrt", "Div", "Mul", "Add"]


def test_a_second_time_changes_nothing():
    first = optimize(given(ROOT + "i = Reciprocal(r)\n y = Mul(x, i)", SIGNATURE))
    assert first.applications and not optimize(first.model).applications
