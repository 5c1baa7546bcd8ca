"""Data that cannot be right, as the commands tell it: a warning, the verdict, and the manifest."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli import command
from tests.zoo import ZOO, data


@pytest.fixture
def run():
    """Call the command in this process: its status, stdout and stderr."""
    return command.run


@pytest.fixture
def images(tmp_path):
    """A file of images, each changed in one way."""

    def write(name, change=lambda rows: rows, seed=0):
        rows = data(ZOO["residual_cnn"](), 24, seed)
        np.savez(tmp_path / name, **{key: change(array).astype(np.float32) for key, array in rows.items()})
        return tmp_path / name

    return write


FAST = ("--effort", "fast", "--json")


def test_build_warns_of_repeated_rows_and_calls_the_result_suspect(run, zoo, images, tmp_path):
    rows = images("same.npz", lambda array: np.repeat(array[:1], 24, axis=0))
    status, out, err = run("build", zoo.model("residual_cnn"), "--data", rows, *FAST, "-o", tmp_path / "out")
    found = json.loads(out)
    sentence = f"{rows}: 18 rows, but only 1 different"
    assert status == 0 and f"warning: {sentence}" in " ".join(err.split())
    assert any(text.startswith(sentence) for text in found["warnings"])
    assert found["verdict"] in ("suspect", "broken")
    assert any(text.startswith(sentence) for text in found["verdict_reasons"])


def test_build_names_test_rows_of_another_scale(run, zoo, images, tmp_path):
    rows, test = images("bytes.npz", lambda array: 128 + 60 * array), images("test.npz", seed=1)
    files = ("--data", rows, "--test-data", test)
    _, out, err = run("build", zoo.model("residual_cnn"), *files, *FAST, "-o", tmp_path / "out")
    assert "prepare both alike" in err and "what it was in training" in err
    assert any("prepare both alike" in text for text in json.loads(out)["verdict_reasons"])


def test_build_says_nothing_of_sound_rows(run, zoo, images, tmp_path):
    files = ("--data", images("rows.npz"), "--test-data", images("test.npz", seed=1))
    _, out, err = run("build", zoo.model("residual_cnn"), *files, *FAST, "-o", tmp_path / "out")
    assert json.loads(out)["warnings"] == [] and "warning" not in err


def test_verify_looks_at_the_rows_that_it_compares_on(run, zoo, images):
    model = zoo.model("residual_cnn")
    status, out, err = run("verify", model, model, "--test-data", images("black.npz", np.zeros_like), "--json")
    assert status == 0 and "holds one value only (0) in all 24 rows" in err
    assert json.loads(out)["verdict"] == "suspect"
    assert json.loads(run("verify", model, model, "--test-data", images("rows.npz"), "--json")[1])["verdict"] == "good"
