"""Scalar factors of attention join the weights of the layer that they come from."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import scalar_factors
from intact.rules.float.optimization import optimize
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(scalar_factors)

RNG = np.random.default_rng(5)
TOLERANCE = 2e-6
SIGNATURE = "(float[1,4,6] x) => (float[{shape}] y)"
LINEAR = "m = MatMul(x, w)\n l = Add(b, m)\n r = Reshape(l, shape)\n h = Transpose <perm = [0,2,1,3]> (r)\n"
ARRAYS = {
    "w": RNG.standard_normal((6, 6)).astype(np.float32),
    "b": RNG.standard_normal(6).astype(np.float32),
    "shape": np.array([1, 4, 2, 3]),
    "c": np.float32(0.577),
}


@pytest.mark.parametrize(
    ("body", "signature", "rules", "expected"),
    [
        ("m = MatMul(x, w)\n y = Mul(m, c)", "(float[1,4,6] x) => (float[1,4,6] y)", ["scale_mat_mul"], ["MatMul"]),
        (
            "m = MatMul(x, w)\n l = Add(m, b)\n y = Div(l, c)",
            "(float[1,4,6] x) => (float[1,4,6] y)",
            ["scale_mat_mul"],
            ["MatMul", "Add"],
        ),
        (
            LINEAR + "y = Mul(h, c)",
            "(float[1,4,6] x) => (float[1,2,4,3] y)",
            ["scale_before_move", "scale_before_move", "scale_mat_mul"],
            ["MatMul", "Add", "Reshape", "Transpose"],
        ),
        (
            LINEAR + "s = MatMul(h, k)\n y = Div(s, c)",
            "(float[1,4,6] x, float[1,2,3,4] k) => (float[1,2,4,4] y)",
            ["scale_operand", "scale_before_move", "scale_before_move", "scale_mat_mul"],
            ["MatMul", "Add", "Reshape", "Transpose", "MatMul"],
        ),
        (
            LINEAR + "s = MatMul(k, h)\n y = Mul(s, c)",
            "(float[1,4,6] x, float[1,2,3,4] k) => (float[1,2,3,3] y)",
            ["scale_operand", "scale_before_move", "scale_before_move", "scale_mat_mul"],
            ["MatMul", "Add", "Reshape", "Transpose", "MatMul"],
        ),
    ],
    ids=["product", "layer", "heads", "left operand", "right operand"],
)
def test_it_fires_and_keeps_the_numbers(body, signature, rules, expected):
    arrays = {name: array for name, array in ARRAYS.items() if f" {name})" in body or f"({name}," in body}
    result = optimize(given(body, signature, **arrays))
    applied = [item.rule for item in result.applications]
    assert applied == rules
    assert ops(result.model) == expected
    assert difference(given(body, signature, **arrays), result.model) < TOLERANCE


@pytest.mark.parametrize(
    ("rule", "body", "shape", "reason"),
    [
        (
            "scale_mat_mul",
            "m = MatMul(x, w)\n y = Mul(m, b)",
            "1,4,6",
            "constant 'b' is not one finite number other than 0",
        ),
        (
            "scale_mat_mul",
            "m = MatMul(x, w)\n y = Div(m, zero)",
            "1,4,6",
            "constant 'zero' is not one finite number other than 0",
        ),
        ("scale_mat_mul", "m = MatMul(x, w)\n y = Mul(m, huge)", "1,4,6", "constant 'w' would leave its range"),
        ("scale_mat_mul", "m = MatMul(x, w)\n y = Mul(m, raised)", "1,1,4,6", "the number may raise the rank"),
        (
            "scale_before_move",
            "r = Reshape(x, shape)\n y = Mul(r, c)",
            "1,4,2,3",
            "graph input 'x' is not the work of one linear layer with no other uses",
        ),
        (
            "scale_before_move",
            "g = Relu(x)\n r = Reshape(g, shape)\n y = Mul(r, c)",
            "1,4,2,3",
            "Relu 'g' is not linear",
        ),
        (
            "scale_before_move",
            "m = MatMul(x, w)\n r = Reshape(m, shape)\n z = Mul(r, c)\n v = Reshape(m, shape)\n y = Add(z, v)",
            "1,4,2,3",
            "MatMul 'm' is not the work of one linear layer with no other uses",
        ),
        (
            "scale_operand",
            "g = Relu(x)\n t = Transpose <perm = [0,2,1]> (x)\n s = MatMul(g, t)\n y = Mul(s, c)",
            "1,4,4",
            "graph input 'x' is not the work of one linear layer with no other uses",
        ),
    ],
)
def test_it_refuses_with_a_reason(rule, body, shape, reason):
    extra = {"zero": np.float32(0), "huge": np.float32(3e38), "raised": np.full((1, 1, 1, 1), np.float32(2))}
    arrays = {**ARRAYS, "w": ARRAYS["w"] * 4, **extra}
    used = {name: array for name, array in arrays.items() if f" {name})" in body}
    result = rewritten(RULES, body, SIGNATURE.format(shape=shape), **used)
    assert (rule, reason) in {(item.rule, item.reason) for item in result.refusals}
    assert result.applications == ()
