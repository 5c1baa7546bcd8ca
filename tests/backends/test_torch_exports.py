"""A network with the grids of torch's own training, as torch exports it: integers on the CPU, whole on the NPU."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest

from intact.api.build import build
from intact.numbers.decibels import sqnr_db

torch = pytest.importorskip("torch", reason="torch is not installed (make .venv/hf)")
quantization = pytest.importorskip("torch.ao.quantization", reason="this torch trains on no grids")


@pytest.fixture(scope="module")
def trained():
    """A block of MobileNetV2 and a head with the grids of torch's own training, whose ranges it has seen."""
    torch.manual_seed(0)
    layers = [
        quantization.QuantStub(),
        *(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 16, 3, padding=1, groups=16), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 8, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4)),
    ]
    model = torch.nn.Sequential(*layers).train()
    model.qconfig = quantization.get_default_qat_qconfig("qnnpack", version=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fused = quantization.fuse_modules_qat(model, [["1", "2"], ["3", "4"]])
        prepared = quantization.prepare_qat(fused)
        prepared(torch.randn(64, 3, 12, 12))
    prepared.eval().apply(quantization.disable_observer)
    return prepared


@pytest.fixture(scope="module")
def given(trained, tmp_path_factory):
    """Its file, by torch's older exporter: the newer one refuses the modules that hold the grids."""
    path = tmp_path_factory.mktemp("torch") / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(trained, (torch.randn(1, 3, 12, 12),), path, dynamo=False, opset_version=17)
    return path


def test_what_torch_trained_on_grids_becomes_integers_on_the_cpu(trained, given, tmp_path):
    built = build(given, device="cpu", output=tmp_path / "out")
    operators = [node.op_type for node in onnx.load(tmp_path / "out/model.onnx").graph.node]
    assert built.verdict == "good" and operators.count("QLinearConv") == 3 and "Conv" not in operators
    rows = np.random.default_rng(0).standard_normal((32, 1, 3, 12, 12)).astype(np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
    (name,) = [port.name for port in session.get_inputs()]
    found = np.stack([session.run(None, {name: row})[0] for row in rows])
    with torch.no_grad():
        expected = np.stack([trained(torch.from_numpy(row)).numpy() for row in rows])
    assert sqnr_db(float(np.sum(expected**2)), float(np.sum((expected - found) ** 2))) > 30, "as torch computes it"


@pytest.mark.qnn
def test_what_torch_trained_on_grids_is_whole_on_the_npu(given, tmp_path):
    built = build(given, device="qnn", output=tmp_path / "out")
    assert built.placement.partitions == 1 and not built.placement.cpu_nodes
    assert min(row.sqnr_db for row in built.accuracy if row.form == "compiled") > 30
