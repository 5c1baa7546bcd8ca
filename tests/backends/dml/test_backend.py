"""The model as DirectML gets it: prepared everywhere, loaded and run where the provider is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from intact.backends import compiling
from intact.backends.dml import backend as dml
from intact.errors import NotAvailable, SettingsError
from intact.model import io
from intact.pipeline import stages
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from tests.backends import qdq


@pytest.fixture
def windows(monkeypatch):
    """A machine that has the provider: the CPU's stands in for it."""
    monkeypatch.setattr(dml, "PROVIDER", "CPUExecutionProvider")


def build(folder, **settings):
    return compiling.compile(qdq.cnn(), compiling.Device("dml", 60, **settings), folder)


def test_elsewhere_the_model_is_prepared_and_says_so(tmp_path):
    compiled = build(tmp_path)
    assert compiled.files == (tmp_path / "model.onnx",) and not compiled.runs
    assert not compiled.placement.known and compiled.placement.cpu_nodes == ()
    (warning,) = compiled.warnings
    assert warning.startswith("prepared, not run here")
    ort_cpu.Session(compiled.path)


def test_elsewhere_it_cannot_be_run(tmp_path):
    path = build(tmp_path).path
    with pytest.raises(NotAvailable, match="DirectML is not on this machine"):
        compiling.run(path, qdq.images(1), compiling.Device("dml", 60))


def test_where_the_provider_is_the_model_is_loaded_placed_and_run(windows, tmp_path):
    compiled = build(tmp_path)
    assert compiled.runs and compiled.warnings == () and compiled.runtime.endswith("DirectML")
    assert compiled.placement.known and compiled.placement.partitions >= 1
    assert "Conv" in {node.op for node in compiled.placement.npu_nodes}
    samples = qdq.images(2)
    outputs = compiling.run(compiled.path, samples, compiling.Device("dml", 60))
    session = ort_cpu.Session(compiled.path, optimize=True)
    for sample, output in zip(samples, outputs, strict=True):
        np.testing.assert_allclose(output["scores.d"], session.run(sample)["scores.d"])


def test_an_option_that_the_provider_does_not_have_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"vtcm_mb.*\n.*device_id"):
        build(tmp_path, ep_options={"vtcm_mb": "4"})


@pytest.fixture
def float_model(tmp_path):
    from tests.quantization.models import model

    weights = {"w": np.ones((4, 3, 3, 3), np.float32) / 27, "b": np.zeros(4, np.float32)}
    io.save(
        model("float[1,3,8,8] x", "float[1,4,6,6] y", "c = Conv(x, w, b)  y = Relu(c)", **weights), tmp_path / "m.onnx"
    )
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32))
    return tmp_path


@pytest.mark.parametrize(("precision", "form"), [("fp32", "rewritten"), ("fp16", "quantized"), ("uint8", "quantized")])
def test_a_build_verifies_what_runs_here_and_warns_of_the_rest(float_model, precision, form):
    quant = {"load_path": str(float_model / "d.npz")}
    config = BuildConfig.from_dict({"precision": precision, "quant": quant, "compile": {"device": "dml"}})
    built = stages.build(float_model / "m.onnx", config, float_model / "out")
    written = json.loads((float_model / "out/manifest.json").read_text())
    assert [row["form"] for row in written["accuracy"]] == [form] and written["placement"]["known"] is False
    assert any("prepared, not run here" in warning for warning in built.warnings)
    assert "where its nodes run was not seen" in (float_model / "out/report.html").read_text()
    assert built.accuracy[0].identical or built.accuracy[0].sqnr_db > 30


@pytest.mark.parametrize("precision", ["w8a16", "w4a16", "int16", "w4"])
def test_a_precision_without_kernels_is_refused(float_model, precision):
    config = BuildConfig.from_dict({"precision": precision, "compile": {"device": "dml"}})
    with pytest.raises(SettingsError, match=f"{precision} makes no sense on dml"):
        stages.build(float_model / "m.onnx", config, float_model / "out")
