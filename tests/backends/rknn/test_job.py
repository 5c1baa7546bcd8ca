"""The job in the toolkit's own interpreter, with a toolkit that only counts: what was built last is not built again."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from intact.backends.rknn import client

JOB = client.__file__.replace("client.py", "job.py")


class FakeToolkit:
    """Takes every model that is not empty, and adds one to what it reads."""

    built: ClassVar[list[tuple[bool, list[str]]]] = []
    told: ClassVar[list[tuple[bool, str | None]]] = []

    def __init__(self, verbose):
        self.verbose = verbose
        os.environ.pop("RKNN_LOG_LEVEL", None)

    def config(self, **_):
        pass

    def load_onnx(self, model):
        with open(model, encoding="utf-8") as file:
            return 0 if file.read() else -1

    def build(self, do_quantization, dataset):
        lines = [] if dataset is None else Path(dataset).read_text(encoding="utf-8").splitlines()
        FakeToolkit.built.append((do_quantization, lines))
        FakeToolkit.told.append((self.verbose, os.environ.get("RKNN_LOG_LEVEL")))
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
    monkeypatch.setattr(FakeToolkit, "told", [])
    monkeypatch.setenv("RKNN_LOG_LEVEL", "0")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("job", JOB)
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


def test_every_model_is_built_with_the_tables_in_the_log_and_without_copies_of_it_in_files(job, tmp_path):
    for text in ("first", "second"):
        (tmp_path / "model.onnx").write_text(text)
        job.compile_model(order(tmp_path, rknn=None))
    assert FakeToolkit.told == [(False, "4"), (False, "4")]


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


PACKAGES = {
    "torch/__init__.py": "import os\nfrom torch import nn\nos.environ['TORCH_RUNS'] = 'yes'\n"
    "arange = lambda count: 'of torch'\n",
    "torch/nn.py": "",
    "rknn/__init__.py": "",
    "rknn/api/__init__.py": "import torch\nfrom .gdq_quant import GdqQuant\nfrom .toolkit import RKNN\n",
    "rknn/api/toolkit.py": "import torch\nclass RKNN:\n    count = staticmethod(lambda: torch.nn)\n",
    "rknn/api/gdq_quant.py": "import torch.nn\nclass GdqQuant:\n    def __init__(self, bits): self.bits = bits\n",
}


def run_in_packages(tmp_path, code):
    """What a fresh interpreter prints that sees these packages, after it has loaded the job."""
    for name, text in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    load = f"import sys, os; sys.path[:0] = [{str(tmp_path)!r}]; exec(open({JOB!r}).read())"
    done = subprocess.run([sys.executable, "-c", f"{load}\n{code}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_torch_is_not_run_until_something_of_it_is_used(tmp_path):
    first = "print(os.environ.get('TORCH_RUNS'))"
    assert run_in_packages(tmp_path, first) == "None"
    assert run_in_packages(tmp_path, f"RKNN.count(); {first}") == "yes"


def test_the_algorithm_that_needs_torch_is_itself_when_it_is_called(tmp_path):
    code = "from rknn.api import GdqQuant; made = GdqQuant(bits=8); import rknn.api.gdq_quant as real\n"
    code += "print(made.bits, type(made) is real.GdqQuant, os.environ.get('TORCH_RUNS'))"
    assert run_in_packages(tmp_path, code) == "8 True yes"


PARTS = "torch.split(torch.arange(24).reshape([2, 3, 4]), [1, 3], dim=2)"
JOINED = f"torch.cat([part.reshape(2, -1) for part in {PARTS}], dim=1).reshape([24]).tolist()"
MOVED = np.split(np.arange(24).reshape(2, 3, 4), [1], axis=2)
ORDER = np.concatenate([part.reshape(2, -1) for part in MOVED], axis=1).ravel().tolist()


def test_a_rule_that_counts_does_without_torch(tmp_path):
    told = run_in_packages(tmp_path, f"import torch\nprint({JOINED})\nprint(os.environ.get('TORCH_RUNS'))")
    assert told.splitlines() == [str(ORDER), "None"]


@pytest.mark.parametrize("failure", ["return None", "raise ValueError('no such attribute')"])
def test_a_build_that_fails_after_counting_is_tried_again_with_torch_itself(tmp_path, failure):
    code = f"""
import torch
def build():
    numbers = torch.arange(3)
    if not hasattr(numbers, "tolist"):
        return f"built with {{numbers}}"
    {failure}
print(_with_torch_if_need_be(build), os.environ.get("TORCH_RUNS"))
"""
    assert run_in_packages(tmp_path, code) == "built with of torch yes"


def test_a_build_that_fails_without_counting_is_not_tried_again(tmp_path):
    code = "tries = []\nprint(_with_torch_if_need_be(lambda: tries.append(1)), len(tries))"
    assert run_in_packages(tmp_path, code) == "None 1"
