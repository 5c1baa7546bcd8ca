"""OpenVINO in a child process: compiles, exports, loads and runs, and says at which precision."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.openvino import client as openvino_client
from intact.backends.openvino.client import Plugin
from intact.backends.probing.models import PROBED, inputs_of
from intact.errors import NotAvailable, ToolchainError
from intact.model import io
from intact.runtime import ort_cpu
from tests.backends.probing.cases import by_name, model

CONV = "Conv (uint8, int8 constant channel symmetric, int32 constant) -> uint8"
FLOAT_CONV = "Conv (float, float constant, float constant) -> float"
EXACT = Plugin(options={"INFERENCE_PRECISION_HINT": "f32"})
SECONDS = 120.0


@pytest.fixture
def saved(tmp_path):
    """A case's model as a file, its inputs, and the names of its outputs."""

    def save(name):
        built = model(name)[0]
        io.save(built, tmp_path / "model.onnx")
        return tmp_path / "model.onnx", inputs_of(by_name()[name]), [value.name for value in built.graph.outputs]

    return save


def precision(compiled):
    (layer,) = (layer for layer in compiled.layers if any(node.split("/")[0] == PROBED for node in layer.nodes))
    return layer.precision


@pytest.mark.openvino
def test_a_machine_has_its_cpu_at_least():
    assert openvino_client.devices()["CPU"]
    assert openvino_client.version()[:2] == "20"


@pytest.mark.openvino
@pytest.mark.parametrize(
    ("name", "expected"),
    [(CONV, "u8"), (FLOAT_CONV, "f32")],
)
def test_a_layer_says_at_which_precision_it_runs(saved, name, expected):
    compiled = openvino_client.compile_blob(saved(name)[0], None, EXACT, timeout=SECONDS)
    assert compiled.error is None and precision(compiled) == expected


@pytest.mark.openvino
@pytest.mark.parametrize("name", [pytest.param(CONV, marks=pytest.mark.vnni), FLOAT_CONV], ids=["uint8", "float"])
def test_a_blob_computes_what_its_model_does(saved, name, tmp_path):
    path, feeds, outputs = saved(name)
    blob = tmp_path / "model.blob"
    openvino_client.compile_blob(path, blob, EXACT, timeout=SECONDS)
    path.rename(tmp_path / "gone.onnx")
    samples = [feeds, {name: value[..., ::-1].copy() for name, value in feeds.items()}]
    found = openvino_client.run(blob, samples, outputs, EXACT, timeout=SECONDS)
    session = ort_cpu.Session(tmp_path / "gone.onnx")
    for sample, row in zip(samples, found, strict=True):
        expected = session.run(sample)
        assert list(row) == list(expected)
        # A step of the output's grid is 16 / 255; sums that end near its half may round either way.
        most = 16 / 255 * 1.001 if name == CONV else 1e-4
        assert max(np.abs(row[output] - expected[output]).max() for output in row) <= most


@pytest.mark.openvino
def test_the_same_model_gives_the_same_bytes(saved, tmp_path):
    path, _, _ = saved(CONV)
    for number in range(2):
        openvino_client.compile_blob(path, tmp_path / f"{number}.blob", EXACT, timeout=SECONDS)
    assert (tmp_path / "0.blob").read_bytes() == (tmp_path / "1.blob").read_bytes()


@pytest.mark.openvino
def test_an_operator_that_it_does_not_know_is_an_error_that_names_it(tmp_path):
    built = model(CONV)[0]
    node = next(node for node in built.graph if node.name == PROBED)
    node.domain, node.op_type = "of.mine", "Conv"
    built.graph.opset_imports["of.mine"] = 1
    io.save(built, tmp_path / "model.onnx")
    compiled = openvino_client.compile_blob(tmp_path / "model.onnx", None, timeout=SECONDS)
    assert "of.mine" in compiled.error and "Exception from" not in compiled.error
    with pytest.raises(ToolchainError, match=r"of\.mine"):
        openvino_client.run(tmp_path / "model.onnx", [], ["y"], timeout=SECONDS)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(openvino_client, "available", lambda: False)
    with pytest.raises(NotAvailable, match="intact\\[openvino\\]"):
        openvino_client.version()
