"""BatchNormalization and constant scales and shifts join the weights before them."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.discovery import rules_of
from intact.rules.float import affine_folding
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = [rule for rule in rules_of(affine_folding) if not rule.is_rare]
ON_AN_NPU = rules_of(affine_folding)

RNG = np.random.default_rng(7)
TOLERANCE = 2e-6


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


STATISTICS = {"gamma": normal(6), "beta": normal(6), "mean": normal(6), "var": np.abs(normal(6)) + 0.1}
LINEAR = {
    "Conv": ("a = Conv <pads = [1,1,1,1], group = 2> (x, w)", "float[2,4,5,5]", "float[2,6,5,5]", normal(6, 2, 3, 3)),
    "Conv with bias": ("a = Conv(x, w, b)", "float[2,4,5]", "float[2,6,5]", normal(6, 4, 1)),
    "ConvTranspose": (
        "a = ConvTranspose <group = 2, strides = [2,2]> (x, w, b)",
        "float[1,4,3,3]",
        "float[1,6,7,7]",
        normal(4, 3, 3, 3),
    ),
    "Gemm": ("a = Gemm <alpha = 0.5, beta = 2.0> (x, w, b)", "float[3,4]", "float[3,6]", normal(4, 6)),
    "Gemm transposed": ("a = Gemm <transB = 1> (x, w)", "float[3,4]", "float[3,6]", normal(6, 4)),
}
AFTER = {
    "batch norm": ("y = BatchNormalization <epsilon = 0.01> (a, gamma, beta, mean, var)", "fold_batch_norm"),
    "scale": ("y = Mul(c, a)", "fold_scale"),
    "division": ("y = Div(a, c)", "fold_scale"),
    "shift": ("y = Add(a, c)", "fold_shift"),
    "difference": ("y = Sub(a, c)", "fold_shift"),
}


def parts(linear: str, after: str) -> tuple[str, str, dict[str, np.ndarray]]:
    head, x, y, weight = LINEAR[linear]
    arrays = {"w": weight}
    if "b)" in head:
        arrays["b"] = normal(6)
    if after == "batch norm":
        arrays |= STATISTICS
    else:
        arrays["c"] = normal(*((6,) if "Gemm" in linear else (6,) + (1,) * (weight.ndim - 2)))
    return f"{head}\n{AFTER[after][0]}", f"({x} x) => ({y} y)", arrays


@pytest.mark.parametrize("linear", LINEAR)
@pytest.mark.parametrize("after", AFTER)
def test_it_fires_and_keeps_the_numbers(linear, after):
    body, signature, arrays = parts(linear, after)
    result = rewritten(RULES, body, signature, **arrays)
    assert [item.rule for item in result.applications] == [AFTER[after][1]]
    assert ops(result.model) == [linear.split()[0]]
    assert difference(given(body, signature, **arrays), result.model) < TOLERANCE


def test_a_whole_chain_folds_into_one_conv():
    body = """
        a = Conv(x, w)
        d = Mul(a, half)
        e = BatchNormalization(d, gamma, beta, mean, var)
        y = Add(shift, e)"""
    arrays = {"w": normal(6, 4, 1, 1), **STATISTICS, "half": np.float32([[[[0.5]]]]), "shift": np.float32(3)}
    signature = "(float[1,4,2,2] x) => (float[1,6,2,2] y)"
    result = rewritten(RULES, body, signature, **arrays)
    assert ops(result.model) == ["Conv"]
    assert result.model.graph[0].name == "y"
    assert difference(given(body, signature, **arrays), result.model) < TOLERANCE


def test_a_weight_that_another_conv_uses_stays_as_it_is():
    body = "a = Conv(x, w)\n y = Mul(a, c)\n v = Conv(x, w)"
    signature = "(float[1,4,2,2] x) => (float[1,6,2,2] y, float[1,6,2,2] v)"
    arrays = {"w": normal(6, 4, 1, 1), "c": np.float32(3)}
    result = rewritten(RULES, body, signature, **arrays)
    assert result.model.graph[1].inputs[1].name == "w"
    assert difference(given(body, signature, **arrays), result.model) < TOLERANCE


CONV = "a = Conv(x, w)\n"


@pytest.mark.parametrize(
    ("tail", "arrays", "reason"),
    [
        (
            "y, m, n = BatchNormalization <training_mode = 1> (a, gamma, beta, mean, var)",
            STATISTICS,
            "BatchNormalization is in training mode",
        ),
        ("y = Mul(a, c)", {"c": normal(5)}, "constant 'c' of shape [5] is not one number for each channel"),
        (
            "y = Add(a, c)",
            {"c": normal(1, 1, 6, 1, 1)},
            "constant 'c' of shape [1, 1, 6, 1, 1] is not one number for each channel",
        ),
        (
            "y = BatchNormalization(a, gamma, beta, mean, var)",
            {**STATISTICS, "var": np.full(6, -1, np.float32)},
            "the result would leave the range of FLOAT",
        ),
        ("y = Div(a, c)", {"c": np.float32(0)}, "the result would leave the range of FLOAT"),
    ],
)
def test_it_refuses_with_a_reason(tail, arrays, reason):
    signature = "(float[1,4,5,5] x) => (float y)"
    result = rewritten(RULES, CONV + tail, signature, **{"w": normal(6, 4, 1, 1), **arrays})
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()


def test_it_refuses_a_result_that_float16_cannot_hold():
    arrays = {"w": np.full((6, 4, 1, 1), 6e4, np.float16), "c": np.float16(2)}
    result = rewritten(RULES, CONV + "y = Mul(a, c)", "(float16[1,4,5,5] x) => (float16[1,6,5,5] y)", **arrays)
    assert [item.reason for item in result.refusals] == ["the result would leave the range of FLOAT16"]


def test_it_refuses_a_gemm_whose_bias_varies_by_row():
    arrays = {"w": normal(4, 6), "b": normal(3, 6), "c": np.float32(2)}
    result = rewritten(RULES, "a = Gemm(x, w, b)\n y = Mul(a, c)", "(float[3,4] x) => (float[3,6] y)", **arrays)
    assert [item.reason for item in result.refusals] == ["the bias has shape [3, 6], not one number for each channel"]


@pytest.mark.parametrize(
    "body",
    [
        "a = Conv(x, w)\n y = Mul(a, c)\n v = Relu(a)",
        "v = Conv(x, w)\n y = Mul(v, c)",
        "a = Conv(x, w)\n v = Relu(x)\n y = Sub(c, a)",
    ],
    ids=["another use", "a graph output", "a constant minus the result"],
)
def test_it_does_not_match(body):
    signature = "(float[1,4,5,5] x) => (float[1,6,5,5] y, float v)"
    assert not rewritten(RULES, body, signature, w=normal(6, 4, 1, 1), c=np.float32(2)).applications


@pytest.mark.parametrize("shape", ["2,6,5", "1,6,3,4"])
def test_a_batch_norm_that_nothing_takes_becomes_a_convolution_of_each_channel(shape):
    body = "a = Relu(x)\n y = BatchNormalization <epsilon = 0.01> (a, gamma, beta, mean, var)"
    signature = f"(float[{shape}] x) => (float[{shape}] y)"
    assert ops(rewritten(RULES, body, signature, **STATISTICS).model) == ["Relu", "BatchNormalization"]
    result = rewritten(ON_AN_NPU, body, signature, **STATISTICS)
    assert ops(result.model) == ["Relu", "Conv"]
    assert difference(given(body, signature, **STATISTICS), result.model) < TOLERANCE


def test_a_batch_norm_that_a_conv_takes_does_not():
    arrays = {"w": normal(6, 4, 1, 1), **STATISTICS}
    body, signature = CONV + "y = BatchNormalization(a, gamma, beta, mean, var)", "(float[1,4,5,5] x) => (float y)"
    assert [item.rule for item in rewritten(ON_AN_NPU, body, signature, **arrays).applications] == ["fold_batch_norm"]


@pytest.mark.parametrize(
    ("signature", "statistics", "reason"),
    [
        ("(float[3,6] x) => (float[3,6] y)", {}, "its input has rank 2; a convolution takes 3, 4"),
        ("(float[1,6,2,2,2] x) => (float y)", {}, "its input has rank 5; a convolution takes 3, 4"),
        (
            "(float[1,6,2] x) => (float[1,6,2] y)",
            {"var": np.full(6, -1, np.float32)},
            "the result would leave the range of FLOAT",
        ),
    ],
)
def test_a_batch_norm_stays_where_a_convolution_cannot_be(signature, statistics, reason):
    body = "y = BatchNormalization(x, gamma, beta, mean, var)"
    result = rewritten(ON_AN_NPU, body, signature, **{**STATISTICS, **statistics})
    assert [item.reason for item in result.refusals] == [reason]
    assert result.applications == ()


NORM = "y = BatchNormalization <epsilon = 0.01> (a, gamma, beta, mean, var)"
ROWS = {"w": normal(4, 6), **STATISTICS}
BEHIND_A_PRODUCT = {
    "rows": ("a = MatMul(x, w)", "float[3,4]", "float[3,6]", ["MatMul", "Add"]),
    "flattened rows": ("p = MatMul(x, w) a = Flatten <axis = 2> (p)", "float[2,3,4]", "float[6,6]", None),
    "reshaped rows": ("p = MatMul(x, w) a = Reshape(p, to)", "float[2,3,4]", "float[6,6]", None),
    "turned": ("p = MatMul(x, w) a = Transpose <perm = [0,2,1]> (p)", "float[2,3,4]", "float[2,6,3]", None),
    "with a bias": ("p = MatMul(x, w) s = Add(p, b) a = Flatten <axis = 2> (s)", "float[2,3,4]", "float[6,6]", None),
    "a bias for each row": ("p = MatMul(x, w) a = Add(rows, p)", "float[3,4]", "float[3,6]", ["MatMul", "Add"]),
}
BIASES = {"b": normal(6), "rows": normal(3, 6), "to": np.int64([6, 6])}


@pytest.mark.parametrize("case", BEHIND_A_PRODUCT)
def test_a_batch_norm_of_the_columns_of_a_product_joins_its_weight(case):
    head, x, y, expected = BEHIND_A_PRODUCT[case]
    body, signature = f"{head}\n{NORM}", f"({x} x) => ({y} y)"
    arrays = ROWS | {name: array for name, array in BIASES.items() if f"{name})" in head or f"({name}," in head}
    result = rewritten(RULES, body, signature, **arrays)
    assert [item.rule for item in result.applications] == ["fold_batch_norm_into_product"]
    move = head.split("a = ")[1].split()[0].split("(")[0]
    assert ops(result.model) == (expected or ["MatMul", "Add", move])
    assert difference(given(body, signature, **arrays), result.model) < TOLERANCE


@pytest.mark.parametrize(
    ("head", "signature", "arrays", "reason"),
    [
        ("a = MatMul(x, w)", "(float[2,6,4] x) => (float[2,6,6] y)", {}, "are not the columns of"),
        (
            "p = MatMul(x, w) a = Reshape(p, to)",
            "(float[2,3,4] x) => (float y)",
            {"to": np.int64([3, 6, 2])},
            "columns",
        ),
        ("p = MatMul(x, w) a = Transpose <perm = [2,1,0]> (p)", "(float[2,6,4] x) => (float y)", {}, "columns"),
        ("a = MatMul(x, w)", "(float[3,4] x) => (float y)", {"var": np.full(6, -1, np.float32)}, "leave the range"),
        ("p = MatMul(x, w) a = Add(p, b)", "(float[6,6,4] x) => (float y)", {"b": normal(6, 6, 1)}, "columns"),
    ],
)
def test_a_batch_norm_of_something_else_stays(head, signature, arrays, reason):
    result = rewritten(RULES, f"{head}\n{NORM}", signature, **{**ROWS, **arrays})
    assert reason in result.refusals[0].reason and result.applications == ()


def test_a_batch_norm_whose_statistics_are_computed_stays():
    body = f"var = Abs(given)\na = MatMul(x, w)\n{NORM}"
    arrays = {name: array for name, array in ROWS.items() if name != "var"}
    result = rewritten(RULES, body, "(float[3,4] x, float[6] given) => (float[3,6] y)", **arrays)
    assert [item.reason for item in result.refusals] == ["its statistics are computed"]


def test_a_batch_norm_in_training_stays_behind_a_product():
    body = "a = MatMul(x, w)\n y, m, n = BatchNormalization <training_mode = 1> (a, gamma, beta, mean, var)"
    result = rewritten(RULES, body, "(float[3,4] x) => (float y)", **ROWS)
    assert [item.reason for item in result.refusals] == ["BatchNormalization is in training mode"]
