"""Operators that a device does not have are written in those that ONNX defines them by; others stay."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.float import optimization
from intact.rules.float.composites import take_apart
from tests.model.small import ops
from tests.rules.float.before_after import difference, given

RNG = np.random.default_rng(0)
FLOATS = "(float[2,4,3] x) => (float[2,4,3] y)"
LABELS = {"t": np.array([[0, 3, 1], [2, 2, 0]])}


def has(lacking: str):
    """A device that has all operators but one."""
    return lambda domain, op: op != lacking


@pytest.mark.parametrize(
    ("op", "text", "signature", "constants"),
    [
        ("CastLike", "y = CastLike(x, like)", FLOATS, {"like": np.float32(0)}),
        ("Celu", "y = Celu <alpha = 0.5> (x)", FLOATS, {}),
        ("Softsign", "y = Softsign(x)", FLOATS, {}),
        ("Shrink", "y = Shrink <lambd = 0.4, bias = 0.1> (x)", FLOATS, {}),
        ("MeanVarianceNormalization", "y = MeanVarianceNormalization <axes = [1]> (x)", FLOATS, {}),
        ("ReduceSumSquare", "y = ReduceSumSquare(x, a)", "(float[2,4,3] x) => (float[2,1,3] y)", {"a": np.array([1])}),
        ("ReduceL1", "y = ReduceL1 <keepdims = 0> (x)", "(float[2,4,3] x) => (float y)", {}),
        ("ReduceLogSumExp", "y = ReduceLogSumExp(x, a)", "(float[2,4,3] x) => (float[2,4,1] y)", {"a": np.array([2])}),
        (
            "NegativeLogLikelihoodLoss",
            'y = NegativeLogLikelihoodLoss <reduction = "sum", ignore_index = 2> (x, t, w)',
            "(float[2,4,3] x) => (float y)",
            {**LABELS, "w": RNG.uniform(0.5, 2, 4).astype(np.float32)},
        ),
        (
            "SoftmaxCrossEntropyLoss",
            'y, z = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t)',
            "(float[2,4,3] x) => (float[2,3] y, float[2,4,3] z)",
            LABELS,
        ),
        (
            "GroupNormalization",
            "y = GroupNormalization <num_groups = 2> (x, s, b)",
            FLOATS,
            {"s": RNG.standard_normal(4).astype(np.float32), "b": RNG.standard_normal(4).astype(np.float32)},
        ),
    ],
)
def test_an_operator_becomes_what_defines_it(op, text, signature, constants):
    model = given(text, signature, **constants)
    (done,) = take_apart(model, has(op))
    assert (done.rule, done.exactness) == ("take_apart", "bounded")
    assert op not in ops(model)
    assert [value.name for value in model.graph.outputs] == [n for n in ("y", "z") if f"] {n}" in signature or n == "y"]
    assert difference(given(text, signature, **constants), model) < 1e-5


def test_an_operator_that_the_device_has_stays():
    assert take_apart(given("y = Softsign(x)", FLOATS), lambda *_: True) == ()


def test_a_grid_that_a_model_chooses_itself_stays_for_the_rules_of_quantized_models():
    text, signature = "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", FLOATS
    assert take_apart(given(text, signature), lambda *_: False) == ()


def test_one_that_is_defined_by_a_loop_or_by_nothing_stays():
    text, signature = "r = Range(zero, n, one) y = Erf(r)", "(float n) => (float[k] y)"
    model = given(text, signature, zero=np.float32(0), one=np.float32(1))
    assert take_apart(model, lambda *_: False) == () and ops(model) == ["Range", "Erf"]


def test_what_a_definition_is_made_of_is_taken_apart_too():
    """A loss from scores is one from logarithms, which is defined by others itself."""
    text, signature = "y = SoftmaxCrossEntropyLoss(x, t)", "(float[2,4,3] x) => (float y)"
    lacking = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
    result = optimization.optimize(given(text, signature, **LABELS), ops=lambda domain, op: op not in lacking)
    assert not set(lacking) & set(ops(result.model))
    assert [one.rule for one in result.applications].count("take_apart") == 2
    assert difference(given(text, signature, **LABELS), result.model) < 1e-5


def test_without_a_device_nothing_is_taken_apart():
    assert ops(optimization.optimize(given("y = Softsign(x)", FLOATS)).model) == ["Softsign"]
