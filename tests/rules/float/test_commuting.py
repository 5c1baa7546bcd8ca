"""Operators change places where that is cheaper, and the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import commuting
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(commuting)
W = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
IMAGE = "(float[1,3,8,8] x) => "
POOL = "MaxPool <kernel_shape = [2,2], strides = [2,2], pads = [1,1,0,0]>"
ROWS = "(float[1,6,4] x) => "


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES = {
    "clip_before_max_pool": (
        f"a = Conv(x, w)\n b = {POOL}(a)\n y = Relu(b)",
        IMAGE + "(float[1,4,3,3] y)",
        {"w": W},
        ["Conv", "Relu", "MaxPool"],
    ),
    "clip_before_max_pool with limits": (
        f"a = Conv(x, w)\n b = {POOL}(a)\n y = Clip(b, low, high)",
        IMAGE + "(float[1,4,3,3] y)",
        {"w": W, "low": np.float32(-1), "high": np.float32(2)},
        ["Conv", "Clip", "MaxPool"],
    ),
    "reduce_before_move behind a Transpose": (
        "a = Transpose <perm = [0,2,1]> (x)\n y = ReduceMean(a, p)",
        ROWS + "(float[1,4,1] y)",
        {"p": ints(-1)},
        ["ReduceMean", "Reshape"],
    ),
    "reduce_before_move behind new axes, which are reduced too": (
        "a = Unsqueeze(x, q)\n y = ReduceMax <keepdims = 0> (a, p)",
        ROWS + "(float[1,4] y)",
        {"p": ints(1, 2), "q": ints(2)},
        ["ReduceMax", "Reshape"],
    ),
    "reduce_before_move of two of four axes": (
        "a = Transpose <perm = [2,0,3,1]> (x)\n y = ReduceSum(a, p)",
        "(float[2,3,4,5] x) => (float[1,2,1,3] y)",
        {"p": ints(0, 2)},
        ["ReduceSum", "Reshape"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_fires_and_keeps_the_numbers(case):
    body, signature, arrays, expected = CASES[case]
    result = rewritten(RULES, body, signature, **arrays)
    assert {item.rule for item in result.applications} == {case.split()[0]}
    assert ops(result.model) == expected
    assert difference(given(body, signature, **arrays), result.model) < 1e-6


@pytest.mark.parametrize(
    ("body", "signature", "arrays", "reason"),
    [
        (
            f"b = {POOL}(x)\n y = Relu(b)",
            IMAGE + "(float[1,3,4,4] y)",
            {},
            "no layer stands before the pool",
        ),
        (
            f"a = Conv(x, w)\n b = {POOL}(a)\n y = Relu(b)\n z = Neg(a)",
            IMAGE + "(float[1,4,3,3] y, float[1,4,6,6] z)",
            {"w": W},
            "Conv 'a' has other readers",
        ),
        (
            "a = Transpose <perm = [2,1,0]> (x)\n y = ReduceMean(a, p)",
            "(float[2,3,4] x) => (float[4,1,2] y)",
            {"p": ints(1)},
            "axes that are left change places",
        ),
        (
            "a = Reshape(x, q)\n y = ReduceMean(a, p)",
            ROWS + "(float[1,2,1] y)",
            {"p": ints(2), "q": ints(1, 2, 12)},
            "axes that are left change places",
        ),
        (
            "a = Transpose <perm = [0,2,1]> (x)\n y = ReduceMean(a, p)",
            "(float[N,6,4] x) => (float[N,4,1] y)",
            {"p": ints(2)},
            "a shape is unknown",
        ),
    ],
)
def test_it_stays_where_the_result_would_differ(body, signature, arrays, reason):
    result = rewritten(RULES, body, signature, **arrays)
    assert not result.applications
    assert reason in [refusal.reason for refusal in result.refusals]
