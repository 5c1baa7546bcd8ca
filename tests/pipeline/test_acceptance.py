"""Gates of whole builds: each passes and fails, and manifest, report and files say so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from intact import data
from intact.api.verify import verify
from intact.errors import SettingsError
from intact.model import io
from intact.pipeline import execution, stages
from intact.settings.config import BuildConfig
from tests.conftest import ROWS

HELD_BACK = data.held_back(ROWS)
# Images on a grid that holds nothing of them: all look the same, and get the same class.
SPOILED = {"overrides": {"image": {"low": -1e-6, "high": 1e-6}}}


@pytest.fixture(scope="module")
def cnn(zoo):
    return zoo.model("residual_cnn")


@pytest.fixture(scope="module")
def rows(zoo):
    return str(zoo.data("residual_cnn"))


@pytest.fixture(scope="module")
def labels(cnn, rows, tmp_path_factory):
    """What the float model says of the held-back rows: it is right by definition."""
    path = tmp_path_factory.mktemp("labels") / "labels.npy"
    outputs = execution.run(cnn, data.load(io.load(cnn), rows, samples=ROWS).test)
    right = np.zeros(ROWS, np.int64)
    right[-HELD_BACK:] = [int(found["logits"].argmax()) for found in outputs]
    assert len(set(right[-HELD_BACK:].tolist())) > 1
    np.save(path, right)
    return str(path)


def built(cnn, rows, folder, quant=None, **values):
    config = {"quant": {"load_path": rows, "effort": "fast", **(quant or {})}, **values}
    result = stages.build(cnn, BuildConfig.from_dict(config), folder)
    return result, json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("gate", "limit", "quant", "passed"),
    [
        ("min_sqnr", 5, {}, True),
        ("min_sqnr", 200, {}, False),
        ("min_cosine", 0.9, {}, True),
        ("min_cosine", 0.9999999, {}, False),
        ("max_accuracy_drop", 100, SPOILED, True),
        ("max_accuracy_drop", 0, SPOILED, False),
        ("max_latency_ratio", 1000, {}, True),
        ("max_latency_ratio", 0.0001, {}, False),
    ],
)
def test_a_gate_is_in_the_manifest_and_leaves_the_artifacts(cnn, rows, labels, tmp_path, gate, limit, quant, passed):
    result, written = built(cnn, rows, tmp_path / "out", quant, labels=labels, **{gate: limit})
    (found,) = written["gates"]
    assert (found["name"], found["limit"], found["passed"]) == (gate, limit, passed)
    # Every class is the same there: a gate that allows for it does not make such a model right.
    spoiled = quant is SPOILED
    assert result.verdict == ("broken" if spoiled else "passed" if passed else "failed")
    assert (result.passed, written["status"]) == ((True, "passed") if passed and not spoiled else (False, "failed"))
    assert bool(found["fix"]) != passed
    assert (tmp_path / "out/model.onnx").exists() and (tmp_path / "out/model.qdq.onnx").exists()


def test_the_accuracy_of_every_form_is_in_manifest_and_report(cnn, rows, labels, tmp_path):
    _, written = built(cnn, rows, tmp_path / "out", labels=labels)
    first, *others = written["task_accuracy"]
    assert (first["form"], first["correct"], first["total"]) == ("original", HELD_BACK, HELD_BACK)
    assert {row["form"] for row in others} >= {"quantized", "compiled"}
    report = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "Accuracy on the labels" in report and "Points lost" in report


def test_what_a_build_deployed_verifies_as_the_build_ran_it(cnn, rows, tmp_path):
    _, written = built(cnn, rows, tmp_path / "out", compile={"io": "quantized"})
    assert "uint8" in {port["dtype"] for port in written["io"]}
    found = verify(cnn, tmp_path / "out/model.onnx", data=rows)
    (model,) = found.models
    expected = next(row for row in written["accuracy"] if row["form"] == "compiled")
    assert (model.form, model.runtime) == ("compiled", expected["runtime"])
    assert model.accuracy[0].sqnr_db == expected["sqnr_db"]


def test_a_deployed_model_that_was_changed_is_no_longer_the_one_of_the_manifest(cnn, rows, tmp_path):
    built(cnn, rows, tmp_path / "out")
    (tmp_path / "out/model.onnx").write_bytes((tmp_path / "out/model.qdq.onnx").read_bytes())
    (model,) = verify(cnn, tmp_path / "out/model.onnx", data=rows).models
    assert (model.form, model.runtime) == ("quantized", execution.PLAIN)


@pytest.mark.qnn
def test_each_architecture_is_that_of_its_build_and_another_is_refused(cnn, rows, tmp_path):
    for arch in ("v68", "v75"):
        built(cnn, rows, tmp_path / arch, compile={"device": "qnn", "arch": arch})
    paths = [tmp_path / arch / "model.onnx" for arch in ("v68", "v75")]
    found = verify(cnn, *paths, data=rows)
    assert [model.runtime.rpartition(" ")[2] for model in found.models] == ["v68", "v75"]
    other = BuildConfig.from_dict({"compile": {"device": "qnn", "arch": "v75"}})
    with pytest.raises(SettingsError, match="compiled for v68"):
        verify(cnn, paths[0], data=rows, config=other)
