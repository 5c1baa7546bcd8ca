"""Inputs that become constants: values in the type and shape of their input, or an error that says why not."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import SettingsError
from intact.model import fixed_inputs, normalize
from tests.model.small import model

SIGNATURE = "(float[2] x, int64 rate, float[n,2] f, uint8[2] u, bool b) => (float[2] y)"


def source():
    return model("r = Cast <to = 1> (rate) y = Mul(x, r)", SIGNATURE)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", 16000, np.array(16000, np.int64)),
        ("rate", 2.0, np.array(2, np.int64)),
        ("x", 0.5, np.array([0.5, 0.5], np.float32)),
        ("x", [1, 2], np.array([1, 2], np.float32)),
        ("f", [[1, 2], [3, 4], [5, 6]], np.array([[1, 2], [3, 4], [5, 6]], np.float32)),
        ("u", [0, 255], np.array([0, 255], np.uint8)),
        ("b", True, np.array(True)),
    ],
)
def test_a_value_takes_the_type_and_shape_of_its_input(name, value, expected):
    (found,) = fixed_inputs.arrays(source(), {name: value}, {}).values()
    assert found.dtype == expected.dtype and found.shape == expected.shape and (found == expected).all()


def test_a_number_fills_free_dimensions_that_the_settings_fix():
    found = fixed_inputs.arrays(source(), {"f": 3}, {"n": 4})["f"]
    assert found.shape == (4, 2) and (found == 3).all()


@pytest.mark.parametrize(
    ("name", "value", "code", "words"),
    [
        ("Rate", 1, "S177", ("no such input", "did you mean rate?", "x, rate, f, u, b")),
        ("rate", 1.5, "S179", ("rate=1.5", "int64 cannot hold it")),
        ("rate", True, "S179", ("int64 cannot hold it",)),
        ("rate", "fast", "S179", ("int64 cannot hold it",)),
        ("u", 256, "S179", ("uint8 cannot hold it",)),
        ("u", -1, "S179", ("uint8 cannot hold it",)),
        ("u", [1, 2, 3], "S179", ("its shape is [3]",)),
        ("x", [[1, 2]], "S179", ("its shape is [1, 2]",)),
        ("x", 1e60, "S179", ("float cannot hold it",)),
        ("f", 1, "S179", ("free dimensions", "--dim")),
        ("f", [[1, 2], [3]], "S179", ("differ in length",)),
        ("b", 1, "S179", ("bool cannot hold it",)),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_reason(name, value, code, words):
    with pytest.raises(SettingsError) as caught:
        fixed_inputs.arrays(source(), {name: value}, {})
    assert caught.value.code == code and all(word in str(caught.value) for word in words)


def test_something_has_to_vary():
    with pytest.raises(SettingsError, match="every input") as caught:
        fixed_inputs.arrays(model("y = Relu(x)"), {"x": 1}, {})
    assert caught.value.code == "S178"


def test_a_fixed_input_is_an_input_no_more():
    given = source()
    result = normalize.normalize(given, fixed=fixed_inputs.arrays(given, {"rate": 3}, {}))
    assert [value.name for value in result.graph.inputs] == ["x", "f", "u", "b"]
    assert result.graph.initializers["rate"].const_value.numpy() == 3
    assert "rate" in [value.name for value in given.graph.inputs], "the given model stays"
