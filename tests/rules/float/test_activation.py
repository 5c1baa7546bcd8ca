"""Gelu and HardSwish are found however they are spelled."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import activation
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(activation)

SIGNATURE = "(float[3,64] x) => (float[3,64] y)"
TOLERANCE = 1e-6
CONSTANTS = {
    "half": np.float32(0.5),
    "one": np.float32([1]),
    "two": np.float32(2),
    "three": np.float32(3),
    "six": np.float32(6),
    "zero": np.float32(0),
    "sixth": np.float32(1 / 6),
    "root2": np.float32(np.sqrt(2)),
    "root_half": np.float32([0.70710678]),
    "outer": np.float32(np.sqrt(2 / np.pi)),
    "inner": np.float32(0.044715),
}

ERF = {"div": "a = Div(x, root2)", "mul": "a = Mul(root_half, x)"}
TANH = {
    "pow": "p = Pow(x, three)\n q = Mul(inner, p)\n r = Add(x, q)\n a = Mul(r, outer)",
    "mul": "s = Mul(x, x)\n p = Mul(s, x)\n q = Mul(p, inner)\n r = Add(q, x)\n a = Mul(outer, r)",
    "fast": "p = Mul(x, inner)\n q = Mul(p, x)\n r = Add(one, q)\n s = Mul(x, outer)\n a = Mul(s, r)",
    "square": "p = Mul(x, x)\n q = Mul(inner, p)\n r = Add(q, one)\n s = Mul(outer, x)\n a = Mul(r, s)",
}
PRODUCTS = {
    "half of x": "h = Mul(x, half)\n y = Mul(h, g)",
    "x over two": "h = Div(x, two)\n y = Mul(g, h)",
    "half of the sum": "h = Mul(half, g)\n y = Mul(x, h)",
    "half of the product": "h = Mul(x, g)\n y = Mul(h, half)",
    "product over two": "h = Mul(g, x)\n y = Div(h, two)",
}


def used(body: str) -> dict[str, np.ndarray]:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {name: array for name, array in CONSTANTS.items() if name in words}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(
    ("argument", "function", "approximate"),
    [*((text, "Erf", None) for text in ERF.values()), *((text, "Tanh", "tanh") for text in TANH.values())],
    ids=[*(f"erf {name}" for name in ERF), *(f"tanh {name}" for name in TANH)],
)
def test_every_spelling_of_gelu_is_found(argument, function, approximate, product):
    body = f"{argument}\n f = {function}(a)\n g = Add(f, one)\n {PRODUCTS[product]}"
    result = rewritten(RULES, body, SIGNATURE, **used(body))
    assert ops(result.model) == ["Gelu"]
    assert result.model.graph[0].attributes.get_string("approximate") == approximate
    assert difference(given(body, SIGNATURE, **used(body)), result.model) < TOLERANCE


CLIP = "a = Add(x, three)\n c = Clip(a, zero, six)\n"


@pytest.mark.parametrize(
    "body",
    [
        "s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)\n y = Mul(s, x)",
        "s = HardSigmoid <alpha = 0.1666666716337204> (x)\n y = Mul(x, s)",
        CLIP + "d = Div(c, six)\n y = Mul(x, d)",
        CLIP + "d = Mul(c, sixth)\n y = Mul(d, x)",
        CLIP + "d = Mul(c, x)\n y = Div(d, six)",
        CLIP + "d = Mul(x, c)\n y = Mul(sixth, d)",
        CLIP + "d = Div(x, six)\n y = Mul(d, c)",
    ],
)
def test_every_spelling_of_hard_swish_is_found(body):
    result = rewritten(RULES, body, SIGNATURE, **used(body))
    assert ops(result.model) == ["HardSwish"]
    assert difference(given(body, SIGNATURE, **used(body)), result.model) < TOLERANCE


@pytest.mark.parametrize(
    "body",
    [
        "s = HardSigmoid(x)\n y = Mul(s, x)",
        "a = Add(x, three)\n c = Clip(a, zero, three)\n d = Mul(c, x)\n y = Div(d, six)",
        "a = Div(x, two)\n f = Erf(a)\n g = Add(f, one)\n h = Mul(x, g)\n y = Mul(h, half)",
        "a = Div(x, root2)\n f = Erf(a)\n g = Add(f, one)\n h = Mul(a, g)\n y = Mul(h, half)",
    ],
    ids=["another slope", "another clip", "another argument", "another factor"],
)
def test_what_only_looks_alike_stays(body):
    assert rewritten(RULES, body, SIGNATURE, **used(body)).applications == ()


@pytest.mark.parametrize(
    ("body", "last"),
    [
        ("a = Div(x, root2)\n f = Erf(a)\n g = Add(f, one)\n h = Mul(x, g)\n y = Mul(h, half)", "half"),
        (CLIP + "h = Mul(x, c)\n y = Mul(h, sixth)", "sixth"),
    ],
    ids=["gelu", "hard swish"],
)
def test_it_refuses_where_a_constant_adds_a_dimension(body, last):
    arrays = used(body) | {last: CONSTANTS[last].reshape(1, 1, 1)}
    result = rewritten(RULES, body, "(float[3,64] x) => (float[1,3,64] y)", **arrays)
    assert [item.reason for item in result.refusals] == ["a constant raises the rank from 2 to 3"]
