"""LayerNormalization and RMSNormalization are found in their pieces."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching.rewriter import apply
from intact.rules.discovery import rules_of
from intact.rules.float import normalization
from intact.rules.float.optimization import optimize
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = [rule for rule in rules_of(normalization) if not rule.is_rare]
RARE = [rule for rule in rules_of(normalization) if rule.is_rare]

SIGNATURE = "(float[2,3,8] x) => (float[2,3,8] y)"
RNG = np.random.default_rng(3)
TOLERANCE = 2e-6
CONSTANTS = {
    "axes": np.int64([-1]),
    "eps": np.float32(1e-5),
    "two": np.float32(2),
    "half": np.float32([0.5]),
    "one": np.float32(1),
    "gamma": RNG.standard_normal(8).astype(np.float32),
    "beta": RNG.standard_normal((1, 1, 8)).astype(np.float32),
}

START = "m = ReduceMean(x, axes)\n d = Sub(x, m)\n"
SQUARES = {"pow": "q = Pow(d, two)", "mul": "q = Mul(d, d)", "again": "d2 = Sub(x, m)\n q = Pow(d2, two)"}
ROOTS = {"sqrt": "r = Sqrt(e)", "pow": "r = Pow(e, half)"}
QUOTIENTS = {
    "div": "n = Div(d, r)",
    "reciprocal": "i = Reciprocal(r)\n n = Mul(i, d)",
    "one": "i = Div(one, r)\n n = Mul(d, i)",
}
ENDS = {"bare": "y = Identity(n)", "scale": "y = Mul(n, gamma)", "both": "k = Mul(gamma, n)\n y = Add(k, beta)"}


def text(square="pow", root="sqrt", quotient="div", end="both", start=START):
    middle = "v = ReduceMean(q, axes)\n e = Add(v, eps)"
    return "\n".join([start, SQUARES[square], middle, ROOTS[root], QUOTIENTS[quotient], ENDS[end]])


def used(body: str) -> dict[str, np.ndarray]:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {name: array for name, array in CONSTANTS.items() if name in words}


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_every_spelling_is_found(square, root, quotient):
    body = text(square, root, quotient)
    result = rewritten(RULES, body, SIGNATURE, **used(body))
    assert ops(result.model) == ["LayerNormalization"]
    assert difference(given(body, SIGNATURE, **used(body)), result.model) < TOLERANCE


@pytest.mark.parametrize("end", ENDS)
def test_scale_and_bias_are_taken_where_they_are(end):
    body = text(end=end)
    result = rewritten(RULES, body, SIGNATURE, **used(body))
    assert ops(result.model)[0] == "LayerNormalization"
    assert len(result.model.graph[0].inputs) == (3 if end == "both" else 2)
    assert difference(given(body, SIGNATURE, **used(body)), result.model) < TOLERANCE


def test_several_trailing_axes_are_one_normalization():
    body = text(end="bare")
    arrays = used(body) | {"axes": np.int64([2, 1])}
    result = rewritten(RULES, body, SIGNATURE, **arrays)
    assert result.model.graph[0].attributes.get_int("axis") == -2
    assert difference(given(body, SIGNATURE, **arrays), result.model) < TOLERANCE


@pytest.mark.parametrize(
    ("signature", "arrays", "reason"),
    [
        (SIGNATURE, {"axes": np.int64([1])}, "the mean is over axes [1], not over the last ones"),
        (SIGNATURE, {"eps": np.full(8, 1e-5, np.float32)}, "epsilon is not one number"),
        ("(float[2,3,K] x) => (float[2,3,K] y)", {}, "the size of the normalized axes is unknown"),
    ],
)
def test_it_refuses_with_a_reason(signature, arrays, reason):
    body = text(end="bare")
    result = rewritten(RULES, body, signature, **(used(body) | arrays))
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()


def test_it_refuses_doubles():
    body = text(end="bare")
    arrays = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in used(body).items()
    }
    result = rewritten(RULES, body, SIGNATURE.replace("float", "double"), **arrays)
    assert [item.reason for item in result.refusals] == ["the type is DOUBLE; LayerNormalization computes in float32"]


def test_it_refuses_a_mean_without_its_axis():
    square = "(float[8,8] x) => (float[8,8] y)"
    body = text(end="bare").replace("ReduceMean(", "ReduceMean <keepdims = 0> (")
    result = rewritten(RULES, body, square, **used(body))
    assert [item.reason for item in result.refusals] == ["keepdims is 0"]


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((8,), True), ((), True), ((1, 1, 8), True), ((3, 1), False), ((3, 8), False), ((1, 1, 1, 8), False)],
)
def test_a_scale_joins_only_if_it_is_one_number_for_each_element(shape, fits):
    body = "n = LayerNormalization(x, w)\n y = Mul(n, c)"
    arrays = {"w": CONSTANTS["gamma"], "c": RNG.standard_normal(shape).astype(np.float32)}
    signature = "(float[2,3,8] x) => (float y)"
    result = rewritten(RULES, body, signature, **arrays)
    assert ops(result.model) == (["LayerNormalization"] if fits else ["LayerNormalization", "Mul"])
    expected = f"constant 'c' of shape {list(shape)} is not one number for each normalized element"
    assert [item.reason for item in result.refusals] == ([] if fits else [expected])


RMS = {
    "div": "q = Pow(x, two)\n v = ReduceMean(q, axes)\n e = Add(v, eps)\n r = Sqrt(e)\n n = Div(x, r)\n"
    " y = Mul(gamma, n)",
    "reciprocal": "q = Mul(x, x)\n v = ReduceMean(q, axes)\n e = Add(v, eps)\n r = Sqrt(e)\n i = Reciprocal(r)\n"
    " n = Mul(x, i)\n y = Mul(n, gamma)",
}


def with_opset(body: str, opset: int, **arrays: np.ndarray):
    result = given(body, SIGNATURE, **(used(body) | arrays))
    result.opset_imports[""] = opset
    return result


@pytest.mark.parametrize(("opset", "raised"), [(21, 23), (23, 23), (24, 24)])
@pytest.mark.parametrize("spelling", RMS)
def test_a_root_mean_square_normalization_is_found_and_raises_the_opset_to_its_own(spelling, opset, raised):
    result = apply(with_opset(RMS[spelling], opset), RARE)
    assert ops(result.model) == ["RMSNormalization"] and result.model.opset_imports[""] == raised
    assert difference(with_opset(RMS[spelling], 23), result.model) < TOLERANCE


@pytest.mark.parametrize(
    ("opset", "arrays", "reason"),
    [
        (21, {"axes": np.int64([1])}, "the mean is over axes [1], not over the last ones"),
        (23, {"gamma": np.float32(2)}, "the weight has shape [], not [8]"),
        (23, {"eps": np.full(8, 1e-5, np.float32)}, "epsilon is not one number"),
    ],
)
def test_a_root_mean_square_normalization_is_refused_with_a_reason(opset, arrays, reason):
    result = apply(with_opset(RMS["div"], opset, **arrays), RARE)
    assert reason in {item.reason for item in result.refusals}
    assert result.applications == ()


def test_a_root_mean_square_normalization_stays_in_pieces_unless_the_target_has_it():
    assert "RMSNormalization" not in ops(optimize(with_opset(RMS["div"], 23)).model)
    assert ops(optimize(with_opset(RMS["div"], 23), ops=lambda domain, op_type: True).model) == ["RMSNormalization"]
