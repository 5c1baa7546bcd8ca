"""Outputs that are no plain tensors: taken apart into arrays, and compared like others."""

from __future__ import annotations

import numpy as np
import pytest

from intact.errors import ModelError
from intact.runtime import unpacking
from intact.verification.compare import compare

ONE, TWO = np.array([1.0, 2.0], np.float32), np.array([[3.0]], np.float32)


def rows(first, second):
    found = compare("quantized", "here", [{"y": first}], [{"y": second}])
    return {row.output: row for row in found}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONE, ["y"]),
        ([ONE, TWO], ["y.length", "y[0]", "y[1]"]),
        ([], ["y.length"]),
        (None, ["y"]),
        ([{"cat": 0.25, "dog": 0.75}], ["y.length", "y[0][cat]", "y[0][dog]"]),
    ],
)
def test_every_tensor_gets_a_name_of_its_own(value, names):
    assert list(unpacking.arrays({"y": value})) == names


def test_elements_of_sequences_are_compared_one_by_one():
    found = rows([ONE, TWO], [ONE, TWO + 1])
    assert found["y[0]"].identical and found["y[1]"].max_abs_error == 1.0


def test_a_shorter_sequence_is_an_error():
    with pytest.raises(ModelError, match=r"no output 'y\[1\]'"):
        rows([ONE, TWO], [ONE])


def test_strings_are_compared_by_how_many_are_equal():
    (found,) = rows(np.array(["a", "b", "c"], object), np.array(["a", "x", "c"], object)).values()
    assert (found.equal, found.elements) == (2, 3)


def test_an_optional_without_value_equals_another():
    (found,) = rows(None, None).values()
    assert found.identical
