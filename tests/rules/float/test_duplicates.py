"""What is computed twice is computed once."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.float.duplicates import merge
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

SIGNATURE = "(float[2,3] x) => (float[2,3] y)"


@pytest.mark.parametrize(
    ("body", "arrays", "expected"),
    [
        ("a = Exp(x)\n b = Exp(x)\n y = Add(a, b)", {}, ["Exp", "Add"]),
        ("a = Exp(x)\n b = Exp(x)\n c = Neg(a)\n d = Neg(b)\n y = Add(c, d)", {}, ["Exp", "Neg", "Add"]),
        (
            "a = Mul(x, p)\n b = Mul(x, q)\n y = Add(a, b)",
            {"p": np.float32(2), "q": np.float32(2)},
            ["Mul", "Add"],
        ),
        (
            "a = Mul(x, p)\n b = Mul(x, q)\n y = Add(a, b)",
            {"p": np.float32(2), "q": np.float32(3)},
            ["Mul", "Mul", "Add"],
        ),
        (
            "a = Softmax <axis = 0> (x)\n b = Softmax <axis = 1> (x)\n y = Add(a, b)",
            {},
            ["Softmax", "Softmax", "Add"],
        ),
        ("a = RandomNormalLike(x)\n b = RandomNormalLike(x)\n y = Sub(a, b)", {}, ["RandomNormalLike"] * 2 + ["Sub"]),
    ],
    ids=["twice", "a chain", "equal constants", "other constants", "other attributes", "chance"],
)
def test_a_repeated_node_gives_way(body, arrays, expected):
    model = given(body, SIGNATURE, **arrays)
    merged = merge(model)
    assert ops(model) == expected
    assert {item.rule for item in merged} <= {"merge_duplicates"}
    if "Random" not in body:
        assert difference(given(body, SIGNATURE, **arrays), model) == 0


def test_a_graph_output_keeps_its_node():
    model = given("a = Exp(x)\n y = Exp(x)\n v = Neg(a)", "(float[2] x) => (float[2] y, float[2] v)")
    assert merge(model) == ()
    assert ops(model) == ["Exp", "Exp", "Neg"]
