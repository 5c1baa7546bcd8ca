"""The job in the toolkit's own interpreter, with a toolkit that only counts: what was built last is not built again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from intact.backends.rknn import client


class FakeToolkit:
    """Takes every model that is not empty, and adds one to what it reads."""

    built: ClassVar[list[tuple[bool, list[str]]]] = []

    def __init__(self, verbose):
        self.dataset = None

    def config(self, **_):
        pass

    def load_onnx(self, model):
        with open(model, encoding="utf-8") as file:
            return 0 if file.read() else -1

    def build(self, do_quantization, dataset):
        lines = [] if dataset is None else Path(dataset).read_text(encoding="utf-8").splitlines()
        FakeToolkit.built.append((do_quantization, lines))
        return 0

    def export_rknn(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("compiled")
        return 0

    def init_runtime(self):
        return 0

    def inference(self, inputs, data_format):
        return [inputs[0] + 1]

    def release(self):
        pass


@pytest.fixture
def job(tmp_path, monkeypatch):
    package, api = ModuleType("rknn"), ModuleType("rknn.api")
    api.RKNN = FakeToolkit
    monkeypatch.setitem(sys.modules, "rknn", package)
    monkeypatch.setitem(sys.modules, "rknn.api", api)
    monkeypatch.setattr(FakeToolkit, "built", [])
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("job", client.__file__.replace("client.py", "job.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def order(tmp_path, platform="rk3588", **more):
    return {"model": str(tmp_path / "model.onnx"), "platform": platform, "options": {}, **more}


def samples(tmp_path):
    np.savez(tmp_path / "in.npz", **{"0.0": np.zeros(3), "1.0": np.ones(3)})
    return {"names": ["x"], "samples": 2, "inputs": str(tmp_path / "in.npz"), "outputs": str(tmp_path / "out.npz")}


def test_a_model_that_was_just_compiled_runs_without_being_built_again(job, tmp_path):
    (tmp_path / "model.onnx").write_text("first")
    rknn = tmp_path / "model.rknn"
    assert job.compile_model(order(tmp_path, rknn=str(rknn))) == {"compiled": True, "error": None}
    assert job.run_samples(order(tmp_path, **samples(tmp_path))) == {"outputs": 1}
    assert rknn.read_text() == "compiled" and FakeToolkit.built == [(False, [])]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["1.0"], np.full(3, 2.0))


@pytest.mark.parametrize("changed", ["model.onnx", "model.onnx.data", None])
def test_another_model_weights_beside_it_or_another_chip_are_built_anew(job, tmp_path, changed):
    (tmp_path / "model.onnx").write_text("first")
    job.compile_model(order(tmp_path, rknn=None))
    if changed is not None:
        (tmp_path / changed).write_text("second")
    job.compile_model(order(tmp_path, "rk3588" if changed is not None else "rk3566", rknn=None))
    assert len(FakeToolkit.built) == 2


def test_the_toolkits_own_quantizer_gets_every_sample_on_a_line(job, tmp_path):
    (tmp_path / "model.onnx").write_text("first")
    assert job.compile_quantized(order(tmp_path, rknn=None, **samples(tmp_path)))["compiled"]
    [(quantizes, lines)] = FakeToolkit.built
    assert quantizes and [np.load(line)[0] for line in lines] == [0.0, 1.0]
    job.compile_model(order(tmp_path, rknn=None))
    assert len(FakeToolkit.built) == 2


def test_a_model_that_is_not_read_is_not_compiled(job, tmp_path):
    (tmp_path / "model.onnx").write_text("")
    assert job.compile_model(order(tmp_path, rknn=None)) == {"compiled": False, "error": None}
