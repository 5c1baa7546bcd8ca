"""Linear layers take one form: Gemm without factors."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import linear
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(linear)

RNG = np.random.default_rng(3)
ARRAYS = {"w": RNG.standard_normal((4, 6)).astype(np.float32), "b": RNG.standard_normal(6).astype(np.float32)}
SIGNATURE = "(float[3,4] x) => (float[3,6] y)"


@pytest.mark.parametrize(
    ("rule", "body", "signature", "expected"),
    [
        ("fold_float_gemm_factors", "y = Gemm <alpha = 0.3, beta = 2.5> (x, w, b)", SIGNATURE, ["Gemm"]),
        ("fold_float_gemm_factors", "y = Gemm <alpha = 0.3> (x, w)", SIGNATURE, ["Gemm"]),
        (
            "transpose_gemm_input",
            "y = Gemm <transA = 1> (x, w, b)",
            "(float[4,3] x) => (float[3,6] y)",
            ["Transpose", "Gemm"],
        ),
        ("make_gemm", "m = MatMul(x, w)\n y = Add(b, m)", SIGNATURE, ["Gemm"]),
    ],
)
def test_it_fires_and_keeps_the_numbers(rule, body, signature, expected):
    arrays = {name: array for name, array in ARRAYS.items() if name == "w" or "b" in body.replace("beta", "")}
    result = rewritten(RULES, body, signature, **arrays)
    assert [item.rule for item in result.applications] == [rule]
    assert ops(result.model) == expected
    gemm = result.model.graph[-1]
    assert {"alpha", "beta", "transA"}.isdisjoint(gemm.attributes)
    assert difference(given(body, signature, **arrays), result.model) < 2e-6


@pytest.mark.parametrize(
    ("rule", "body", "signature", "arrays", "reason"),
    [
        ("fold_float_gemm_factors", "y = Gemm(x, w, b)", SIGNATURE, ARRAYS, "alpha and beta are 1"),
        (
            "fold_float_gemm_factors",
            "y = Gemm <alpha = 1e38> (x, w)",
            SIGNATURE,
            {"w": ARRAYS["w"] * 50},
            "the result would leave the range of its type",
        ),
        ("transpose_gemm_input", "y = Gemm(x, w, b)", SIGNATURE, ARRAYS, "transA is 0"),
        (
            "make_gemm",
            "m = MatMul(x, w)\n y = Add(m, b)",
            "(float[1,3,4] x) => (float[1,3,6] y)",
            ARRAYS,
            "graph input 'x' of rank 3 and constant 'w' are not two matrices",
        ),
        (
            "make_gemm",
            "m = MatMul(x, w)\n y = Add(m, b)",
            SIGNATURE,
            {"w": ARRAYS["w"], "b": np.ones((3, 6), np.float32)},
            "constant 'b' is not one number for each of 6 columns",
        ),
    ],
)
def test_it_refuses_with_a_reason(rule, body, signature, arrays, reason):
    result = rewritten(RULES, body, signature, **arrays)
    assert (rule, reason) in {(item.rule, item.reason) for item in result.refusals}
    assert result.applications == ()
