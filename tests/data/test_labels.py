"""Labels: which rows they belong to, and files that cannot be labels."""

from __future__ import annotations

import numpy as np
import pytest

from intact import data
from intact.data.labels import load_labels
from intact.errors import DataError
from intact.model import io
from tests.conftest import ROWS

HELD_BACK = data.held_back(ROWS)


@pytest.fixture
def inputs(zoo):
    return data.load(io.load(zoo.model("residual_cnn")), str(zoo.data("residual_cnn")), samples=128)


def saved(folder, array, **named):
    path = folder / ("labels.npz" if named else "labels.npy")
    np.savez(path, **named) if named else np.save(path, array)
    return str(path)


def test_held_back_rows_take_the_labels_of_their_own_rows(inputs, tmp_path):
    found = load_labels(saved(tmp_path, np.arange(ROWS)), inputs.test)
    assert found.by_output["labels"].tolist() == [[row] for row in range(ROWS - HELD_BACK, ROWS)]


def test_rows_of_test_data_have_all_of_theirs(zoo, tmp_path):
    model, rows = io.load(zoo.model("residual_cnn")), str(zoo.data("residual_cnn"))
    test = data.load(model, rows, samples=8, test_source=rows).test
    assert load_labels(saved(tmp_path, np.arange(ROWS)), test).by_output["labels"].shape == (ROWS, 1)


def test_an_npz_has_one_array_for_each_output(inputs, tmp_path):
    path = saved(tmp_path, None, logits=np.zeros(ROWS, np.int64), tags=np.zeros((ROWS, 5), np.int32))
    found = load_labels(path, inputs.test).by_output
    assert {name: array.shape for name, array in found.items()} == {"logits": (HELD_BACK, 1), "tags": (HELD_BACK, 5)}


@pytest.mark.parametrize(
    ("array", "code", "words"),
    [
        (np.zeros(HELD_BACK, np.int64), "D134", "label every row"),
        (np.zeros(ROWS + 1, np.int64), "D134", f"{ROWS + 1} labels for {ROWS} samples"),
        (np.zeros(0, np.int64), "D134", "0 labels"),
        (np.int64(3), "D134", "0 labels"),
        (np.zeros(ROWS, np.float32), "D133", "float32"),
        (np.array([{"a": 1}] * ROWS, dtype=object), "D132", "cannot be read"),
    ],
)
def test_labels_that_do_not_line_up_are_refused(inputs, tmp_path, array, code, words):
    with pytest.raises(DataError, match=words) as caught:
        load_labels(saved(tmp_path, array), inputs.test)
    assert caught.value.code == code


def test_a_file_that_is_not_there_or_no_array_is_refused(inputs, tmp_path):
    (tmp_path / "text.npy").write_text("0\n1\n")
    for name in ("absent.npy", "text.npy"):
        with pytest.raises(DataError, match="cannot be read"):
            load_labels(str(tmp_path / name), inputs.test)


def test_synthetic_inputs_have_no_labels(zoo, tmp_path):
    test = data.load(io.load(zoo.model("residual_cnn")), None, samples=8).test
    with pytest.raises(DataError, match="synthetic inputs have no labels"):
        load_labels(saved(tmp_path, np.arange(24)), test)
