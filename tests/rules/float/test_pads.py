"""Pad joins the padding of what follows, where that means the same."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import pads
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(pads)

SIGNATURE = "(float[1,2,6,6] x) => (float[1,2,M,N] y)"
WEIGHT = np.random.default_rng(5).standard_normal((2, 2, 3, 3)).astype(np.float32)
INF = np.float32(-np.inf)


def pads(*spatial: int) -> np.ndarray:
    top, left, bottom, right = spatial
    return np.int64([0, 0, top, left, 0, 0, bottom, right])


FIRES = {
    "conv": ("p = Pad(x, pads)\n y = Conv(p, w)", {"pads": pads(0, 1, 2, 3), "w": WEIGHT}, [0, 1, 2, 3]),
    "conv with padding, bias and axes": (
        "p = Pad(x, pads, , axes)\n y = Conv <pads = [1,1,1,1], strides = [2,2]> (p, w, b)",
        {"pads": np.int64([1, 2, 0, 0]), "axes": np.int64([3, -2]), "w": WEIGHT, "b": np.float32([1, 2])},
        [3, 2, 1, 1],
    ),
    "valid conv": (
        'p = Pad(x, pads, zero)\n y = Conv <auto_pad = "VALID"> (p, w)',
        {"pads": pads(1, 1, 1, 1), "zero": np.float32(0), "w": WEIGHT},
        [1, 1, 1, 1],
    ),
    "average pool": (
        "p = Pad(x, pads)\n y = AveragePool <kernel_shape = [3,3], strides = [2,2]> (p)",
        {"pads": pads(1, 0, 1, 2)},
        [1, 0, 1, 2],
    ),
    "max pool with −∞": (
        "p = Pad(x, pads, low)\n y = MaxPool <kernel_shape = [3,3]> (p)",
        {"pads": pads(1, 1, 2, 1), "low": INF},
        [1, 1, 2, 1],
    ),
    "max pool after relu": (
        "r = Relu(x)\n p = Pad(r, pads)\n y = MaxPool <kernel_shape = [3,3], strides = [2,2]> (p)",
        {"pads": pads(1, 1, 1, 1)},
        [1, 1, 1, 1],
    ),
}


@pytest.mark.parametrize("case", FIRES)
def test_it_fires_and_keeps_the_numbers(case):
    body, arrays, expected = FIRES[case]
    result = rewritten(RULES, body, SIGNATURE, **arrays)
    assert "Pad" not in ops(result.model)
    assert list(result.model.graph[-1].attributes.get_ints("pads")) == expected
    assert difference(given(body, SIGNATURE, **arrays), result.model) < 1e-6


POOL = "p = Pad(x, pads)\n y = {}Pool <kernel_shape = [3,3]{}> (p)"


@pytest.mark.parametrize(
    ("body", "arrays", "reason"),
    [
        (POOL.format("Max", ""), {"pads": pads(1, 1, 1, 1)}, "it pads with 0.0, the operator with -inf"),
        (POOL.format("Max", ", ceil_mode = 1"), {"pads": pads(1, 1, 1, 1)}, "ceil_mode is 1"),
        (
            POOL.format("Average", ""),
            {"pads": pads(3, 1, 1, 1)},
            "padding of [3, 1, 1, 1] is as wide as the window [3, 3]",
        ),
        (
            POOL.format("Average", ", pads = [1,1,1,1]"),
            {"pads": pads(1, 1, 1, 1)},
            "the pool has padding of its own that it does not count",
        ),
        (POOL.format("Average", ", dilations = [2,2]"), {"pads": pads(1, 1, 1, 1)}, "the window has gaps"),
        (
            "p = Pad(x, pads, one)\n y = Conv(p, w)",
            {"pads": pads(1, 1, 1, 1), "one": np.float32(1), "w": WEIGHT},
            "it pads with 1.0, the operator with 0",
        ),
        (
            'p = Pad <mode = "reflect"> (x, pads)\n y = Conv(p, w)',
            {"pads": pads(1, 1, 1, 1), "w": WEIGHT},
            "the mode of Pad is reflect",
        ),
        ("p = Pad(x, pads)\n y = Conv(p, w)", {"pads": pads(-1, 0, 0, 0), "w": WEIGHT}, "it crops"),
        (
            "p = Pad(x, pads)\n y = Conv(p, w)",
            {"pads": np.int64([0, 1, 0, 0, 0, 0, 0, 0]), "w": np.ones((2, 3, 3, 3), np.float32)},
            "it pads the batch or the channels",
        ),
        (
            'p = Pad(x, pads)\n y = Conv <auto_pad = "SAME_UPPER"> (p, w)',
            {"pads": pads(1, 1, 1, 1), "w": WEIGHT},
            "auto_pad is SAME_UPPER",
        ),
    ],
)
def test_it_refuses_with_a_reason(body, arrays, reason):
    result = rewritten(RULES, body, SIGNATURE, **arrays)
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()


def test_the_indices_of_a_max_pool_keep_the_pad():
    signature = "(float[1,2,6,6] x) => (float[1,2,M,N] y, int64[1,2,M,N] i)"
    body = "p = Pad(x, pads, low)\n y, i = MaxPool <kernel_shape = [3,3]> (p)"
    assert rewritten(RULES, body, signature, pads=pads(1, 1, 1, 1), low=INF).applications == ()
