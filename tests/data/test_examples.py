"""The bundled examples are as good as they claim, small, and fit for use as data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from intact.data import load

EXAMPLES = Path(__file__).parents[2] / "examples"
LEAST_ACCURACY = {"digits_cnn": 0.985, "digits_vit": 0.965}

EVERY_EXAMPLE = pytest.mark.parametrize("name", LEAST_ACCURACY)


@EVERY_EXAMPLE
def test_the_float_accuracy_is_what_the_files_claim(name):
    folder = EXAMPLES / name
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    images, labels = np.load(folder / "test.npz")["image"], np.load(folder / "labels.npy")
    guesses = [session.run(None, {"image": image[None]})[0].argmax() for image in images]
    right = int((np.array(guesses) == labels).sum())

    claim = json.loads((folder / "accuracy.json").read_text())
    assert (right, len(labels)) == (claim["correct"], claim["rows"])
    assert claim["top1"] == right / len(labels) >= LEAST_ACCURACY[name]
    assert f"{right} of {len(labels)} test digits, {claim['top1']:.2%}".replace("%", " %") in " ".join(
        (folder / "README.md").read_text().split()
    )


@EVERY_EXAMPLE
def test_the_model_is_valid_under_a_megabyte_and_says_nothing_of_the_machine_that_made_it(name):
    path = EXAMPLES / name / "model.onnx"
    assert path.stat().st_size < 1_000_000
    exported = onnx.load(path)
    onnx.checker.check_model(exported, full_check=True)
    parts = (exported, exported.graph, *exported.graph.node, *exported.graph.value_info)
    assert not any(part.metadata_props or part.doc_string for part in parts)


@EVERY_EXAMPLE
def test_its_data_load_and_no_test_digit_is_calibrated_on(name):
    folder = EXAMPLES / name
    model = ir.load(folder / "model.onnx")
    parts = load(model, str(folder / "calibration.npz"), samples=128, test_source=str(folder / "test.npz"))
    assert (parts.calibration.rows, parts.test.rows, parts.warnings) == (64, 360, ())
    calibrated, tested = ({feed["image"].tobytes() for feed in part} for part in (parts.calibration, parts.test))
    assert not calibrated & tested
