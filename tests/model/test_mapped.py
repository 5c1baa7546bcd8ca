"""Large arrays in mapped files."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from intact.model import edit, mapped
from tests.builder import from_text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="arrays stay in memory there")


def large(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, (5, mapped.LEAST_BYTES // 4)).astype(np.int8)


def test_a_large_array_is_mapped_with_the_same_values_type_and_shape():
    array = large()
    found = mapped.aside(array)
    assert mapped.is_mapped(found) and not mapped.is_mapped(array)
    assert found.dtype == array.dtype and not found.flags.writeable
    np.testing.assert_array_equal(found, array)


def test_arrays_that_share_a_file_do_not_share_bytes():
    arrays = [large(seed) for seed in range(3)]
    for array, found in zip(arrays, [mapped.aside(array) for array in arrays], strict=True):
        np.testing.assert_array_equal(found, array)


def test_strided_arrays_are_written_in_their_order():
    np.testing.assert_array_equal(mapped.aside(large().T), large().T)


def test_an_array_larger_than_a_file_gets_one_of_its_own(monkeypatch):
    monkeypatch.setattr(mapped, "FILE_BYTES", 4096)
    monkeypatch.setattr(mapped, "_last", None)
    np.testing.assert_array_equal(mapped.aside(large()), large())


def test_small_and_mapped_arrays_stay_as_they_are():
    small, found = np.zeros(10), mapped.aside(large())
    assert mapped.aside(small) is small
    assert mapped.aside(found) is found and mapped.is_mapped(found[1:3])


def test_without_room_on_the_disk_an_array_stays_in_memory(monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(mapped, "_file_for", full)
    array = large()
    assert mapped.aside(array) is array


def test_new_constants_of_a_graph_are_mapped():
    model = from_text("(float[2] x) => (float[2] y)", "y = Relu(x)")
    value = edit.add_initializer(model.graph, large(), "w")
    assert mapped.is_mapped(value.const_value.numpy())
