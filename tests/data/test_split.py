"""Which rows are calibrated on and which are held back for verification."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.data import Source, held_back, load
from intact.data.dataset import split
from intact.data.input_profile import digest
from tests.data.models import IMAGE


class Numbers(Source):
    """Row i holds the number i."""

    kind = "npz"

    def __init__(self, rows, first=0):
        self.rows = rows
        self.where = "numbers"
        self.first = first

    def read(self, start, stop):
        return ({"x": np.array([self.first + row])} for row in range(start, stop))


def numbers(dataset):
    return [int(feed["x"][0]) for feed in dataset]


@pytest.mark.parametrize(
    ("rows", "held"),
    [(1, 0), (7, 0), (8, 4), (16, 4), (19, 4), (20, 5), (24, 6), (63, 15), (64, 16), (65, 16), (10_000, 16)],
)
def test_the_last_quarter_is_held_back_within_4_and_16_rows_from_8_rows_on(rows, held):
    assert held_back(rows) == held


@given(rows=st.integers(1, 300), samples=st.integers(1, 300))
def test_calibration_is_a_prefix_and_the_test_is_a_suffix_that_it_does_not_touch(rows, samples):
    parts = split(Numbers(rows), samples)
    calibration, test = numbers(parts.calibration), numbers(parts.test)
    assert calibration == list(range(len(calibration)))
    assert len(calibration) == parts.calibration.rows <= samples
    if rows >= 8:
        assert test == list(range(rows - held_back(rows), rows))
        assert len(calibration) == min(samples, rows - len(test))
        assert parts.warnings == ()
    else:
        assert test == calibration
        assert "too few to hold any back" in parts.warnings[0]


@given(rows=st.integers(1, 300), samples=st.integers(1, 300), more=st.integers(1, 300))
def test_the_held_back_rows_do_not_depend_on_how_many_samples_are_asked_for(rows, samples, more):
    if rows >= 8:
        assert numbers(split(Numbers(rows), samples).test) == numbers(split(Numbers(rows), samples + more).test)


@pytest.mark.parametrize(("rows", "test_rows"), [(3, 2), (24, 1), (24, 40)])
def test_separate_test_data_is_used_whole_and_nothing_is_held_back(rows, test_rows):
    parts = split(Numbers(rows), 100, Numbers(test_rows, first=1000))
    assert numbers(parts.calibration) == list(range(rows))
    assert numbers(parts.test) == list(range(1000, 1000 + test_rows))
    assert parts.warnings == ()


def test_a_dataset_can_be_read_again_and_again():
    calibration = split(Numbers(24), 5).calibration
    assert numbers(calibration) == numbers(calibration) == [0, 1, 2, 3, 4]
    assert len(calibration) == 5


def test_the_sha256_covers_exactly_the_rows_used():
    base = split(Numbers(24), 5)
    assert base.calibration.sha256 == split(Numbers(100), 5).calibration.sha256
    assert base.calibration.sha256 != split(Numbers(24), 6).calibration.sha256
    assert base.calibration.sha256 != split(Numbers(24, first=1), 5).calibration.sha256
    assert base.test.sha256 != split(Numbers(25), 5).test.sha256


@pytest.mark.parametrize(
    "other",
    [
        {"y": np.array([[1, 2]], np.int64)},
        {"x": np.array([[1, 3]], np.int64)},
        {"x": np.array([[1], [2]], np.int64)},
        {"x": np.array([[1, 2]], np.uint64)},
        {"x": np.array([[1, 2]], np.int64), "y": np.array([1])},
    ],
)
def test_a_digest_depends_on_names_values_shapes_and_types(other):
    assert digest(other) != digest({"x": np.array([[1, 2]], np.int64)})


def test_a_digest_does_not_depend_on_order_or_memory_layout():
    rows = np.arange(6.0).reshape(2, 3)
    columns = np.asfortranarray(rows)
    assert digest({"a": rows, "b": rows}) == digest({"b": columns, "a": columns})


@pytest.mark.parametrize("source", [None, "d.npz", "json.decoder:samples"])
def test_inputs_can_be_handed_to_another_process(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((9, 3, 4, 5)).astype(np.float32)
    np.savez("d.npz", x=rows)
    monkeypatch.setattr("json.decoder.samples", lambda: rows, raising=False)
    parts = load(IMAGE, source, samples=3)
    copy = pickle.loads(pickle.dumps(parts))
    assert copy.test.sha256 == parts.test.sha256
    for ours, theirs in zip(parts.test, copy.test, strict=True):
        assert np.array_equal(ours["x"], theirs["x"])


def test_test_data_given_with_synthetic_calibration_is_what_the_result_is_verified_on(tmp_path):
    values = np.ones((2, 3, 4, 5), np.float32)
    np.savez(tmp_path / "t.npz", x=values)
    parts = load(IMAGE, None, samples=3, test_source=str(tmp_path / "t.npz"))
    assert (parts.calibration.kind, parts.calibration.rows) == ("synthetic", 3)
    assert (parts.test.kind, parts.test.rows) == ("npz", 2)
    assert all(np.array_equal(feed["x"], values[:1]) for feed in parts.test)
