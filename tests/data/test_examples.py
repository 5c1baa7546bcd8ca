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
# name: least accuracy, what a row is
CLAIMS = {
    "digits_cnn": (0.985, "digits"),
    "digits_vit": (0.965, "digits"),
    "topics_bert": (0.9, "windows"),
}

EVERY_EXAMPLE = pytest.mark.parametrize("name", CLAIMS)


@EVERY_EXAMPLE
def test_the_float_accuracy_is_what_the_files_claim(name):
    folder = EXAMPLES / name
    session = ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    inputs, labels = dict(np.load(folder / "test.npz")), np.load(folder / "labels.npy")
    rows = ({key: array[row : row + 1] for key, array in inputs.items()} for row in range(len(labels)))
    guesses = [session.run(None, feed)[0].argmax() for feed in rows]
    right = int((np.array(guesses) == labels).sum())

    least, kind = CLAIMS[name]
    claim = json.loads((folder / "accuracy.json").read_text())
    assert (right, len(labels)) == (claim["correct"], claim["rows"])
    assert claim["top1"] == right / len(labels) >= least
    assert f"{right} of {len(labels)} test {kind}, {claim['top1']:.2%}".replace("%", " %") in " ".join(
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
def test_its_data_load_and_no_test_row_is_calibrated_on(name):
    folder = EXAMPLES / name
    model = ir.load(folder / "model.onnx")
    parts = load(model, str(folder / "calibration.npz"), samples=128, test_source=str(folder / "test.npz"))
    assert (parts.calibration.rows, parts.warnings) == (64, ())
    assert parts.test.rows == len(np.load(folder / "labels.npy")) >= 300
    calibrated, tested = ({_key(feed) for feed in part} for part in (parts.calibration, parts.test))
    assert len(tested) == parts.test.rows and not calibrated & tested


def _key(feed):
    return b"".join(feed[name].tobytes() for name in sorted(feed))


def test_the_bert_has_the_mask_that_torch_exports_and_rows_that_need_it():
    """Padding is what makes a mask matter: without it the example would say nothing about masks."""
    folder = EXAMPLES / "topics_bert"
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert {"Where", "Softmax", "LayerNormalization", "Gather"} <= kinds
    mask = np.load(folder / "test.npz")["attention_mask"]
    assert set(np.unique(mask)) == {0, 1} and mask[:, 0].all()
    assert (mask.sum(axis=1) < mask.shape[1]).mean() > 0.5


def test_the_vocabulary_is_the_one_of_the_embedding():
    folder = EXAMPLES / "topics_bert"
    pieces = (folder / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(pieces)) == len(pieces) and pieces[:4] == ["[PAD]", "[CLS]", "[UNK]", "[MASK]"]
    shapes = [tuple(tensor.dims) for tensor in onnx.load(folder / "model.onnx").graph.initializer]
    assert (len(pieces), 64) in shapes
    assert np.load(folder / "test.npz")["input_ids"].max() < len(pieces)
