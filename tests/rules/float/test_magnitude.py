"""The size of a vector is computed from its direction, where a target has that, and not from squares."""

from __future__ import annotations

import numpy as np
import pytest

from intact.quantization.quantizing import quantize
from intact.rules.discovery import rules_of
from intact.rules.float import magnitude
from intact.rules.float.optimization import optimize
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten

RULES = rules_of(magnitude)
PAIR = "(float[2,3,8] x, float[2,3,8] y) => (float[2,3,8] z)"
AXIS = "(float[2,3,8] x) => (float[2,1,8] z)"
CONSTANTS = {"two": np.float32(2), "half": np.float32(0.5), "axes": np.int64([1])}
SQUARES = {"pow": "a = Pow(x, two)\n b = Pow(y, two)", "mul": "a = Mul(x, x)\n b = Pow(y, two)"}
ROOTS = {"sqrt": "z = Sqrt(s)", "pow": "z = Pow(s, half)"}
BY_PAIR = ["Unsqueeze", "Unsqueeze", "Concat", "LpNormalization", "Mul", "ReduceSum"]
BY_AXIS = ["LpNormalization", "Mul", "ReduceSum"]
SPECTRUM = "a = Mul(x, x)\n b = Mul(y, y)\n s = Add(a, b)\n z = Sqrt(s)"


def used(body: str) -> dict[str, np.ndarray]:
    return {name: array for name, array in CONSTANTS.items() if name in body}


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("root", ROOTS)
def test_every_spelling_of_a_pair_is_found(square, root):
    body = f"{SQUARES[square]}\n s = Add(a, b)\n {ROOTS[root]}"
    result = rewritten(RULES, body, PAIR, **used(body))
    assert ops(result.model) == BY_PAIR
    assert difference(given(body, PAIR, **used(body)), result.model) < 1e-6


@pytest.mark.parametrize(("keep", "shape"), [(1, "2,1,8"), (0, "2,8")])
def test_a_sum_of_squares_along_an_axis_is_found(keep, shape):
    body = f"a = Mul(x, x)\n s = ReduceSum <keepdims = {keep}> (a, axes)\n z = Sqrt(s)"
    signature = f"(float[2,3,8] x) => (float[{shape}] z)"
    result = rewritten(RULES, body, signature, **used(body))
    assert ops(result.model) == BY_AXIS
    assert difference(given(body, signature, **used(body)), result.model) < 1e-6


def test_nothing_has_the_size_zero_and_small_numbers_keep_theirs():
    x = np.float32([0, 0, 3e-5, -4e-15, 3e15]).reshape(1, 1, 5)
    y = np.float32([0, -2, 4e-5, 3e-15, 0]).reshape(1, 1, 5)
    result = rewritten(RULES, SPECTRUM, PAIR.replace("2,3,8", "1,1,5"))
    found = ort_cpu.run(result.model, {"x": x, "y": y})["z"]
    np.testing.assert_allclose(found, np.hypot(x, y), rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "signature", "arrays", "reason"),
    [
        (SPECTRUM, PAIR.replace("float[2,3,8] y", "float[8] y"), {}, "the shapes of the two are unknown, or differ"),
        (SPECTRUM, PAIR.replace("[2,3,8]", "[N]"), {}, "the shapes of the two are unknown, or differ"),
        (SPECTRUM, PAIR.replace("float", "double"), {}, "the type of 'x' is DOUBLE, not float32"),
        (
            "a = Mul(x, x)\n s = ReduceSum(a, axes)\n z = Sqrt(s)",
            "(float[2,3,8] x) => (float[2,1,1] z)",
            {"axes": np.int64([1, 2])},
            "the sum is along 2 axes",
        ),
    ],
)
def test_other_sizes_stay(body, signature, arrays, reason):
    result = rewritten(RULES, body, signature, **arrays)
    assert not result.applications
    assert reason in {item.reason for item in result.refusals}


def test_squares_that_are_read_elsewhere_stay():
    body = SPECTRUM.replace("z = Sqrt(s)", "r = Sqrt(s)\n z = Add(r, s)")
    assert not rewritten(RULES, body, PAIR).applications


def test_a_target_without_the_direction_keeps_the_squares():
    model = given(SPECTRUM, PAIR)
    assert ops(optimize(model).model) == ["Mul", "Mul", "Add", "Sqrt"]
    assert ops(optimize(model, ops=lambda domain, op: op != "LpNormalization").model) == ["Mul", "Mul", "Add", "Sqrt"]
    assert ops(optimize(model, ops=lambda domain, op: True).model) == BY_PAIR


def test_a_spectrum_with_loud_and_quiet_parts_survives_16_bits():
    rng = np.random.default_rng(0)
    loudness = 10.0 ** rng.uniform(-3, 1, (2, 3, 8))
    rows = [{name: np.float32(loudness * rng.standard_normal((2, 3, 8))) for name in "xy"} for _ in range(4)]
    target = load_target("qnn")
    model = given(SPECTRUM, PAIR)
    settings = QuantConfig(activation_type="uint16", weight_type="int8")
    direct, directed = (
        quantize(given_model, target, settings, rows).model
        for given_model in (model, optimize(model, ops=target.has).model)
    )
    expected = np.hypot(rows[0]["x"], rows[0]["y"])
    quiet = expected < 0.01 * expected.max()
    errors = [np.abs(ort_cpu.run(one, rows[0])["z"] - expected)[quiet].max() for one in (direct, directed)]
    assert errors[1] < 0.05 * errors[0]
