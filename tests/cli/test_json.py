"""Results for programs: the keys that scripts read, in their order, whatever the classes behind them are called."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from intact.api.quantize import quantize
from intact.cli.main import app

NODE = ["name", "op"]
ANALYSIS = [
    *("target", "soc", "has_npu", "method", "compute_nodes", "npu_percent", "partitions"),
    *("npu_nodes", "cpu_nodes", "float_nodes", "doubts"),
]
FACTS = [
    *("path", "ir_version", "opsets", "producer", "inputs", "outputs", "free_dims", "nodes", "operators"),
    *("weight_bytes", "nonfinite_weights", "quantized"),
]
LAYER = [
    *("node", "op", "tensor", "own_db", "computed_db", "grid_db", "expected_db", "grid_type", "grid_range"),
    *("seen_range", "accumulated_db", "cause", "meant"),
]
BISECTION = ["kind", "first", "layers", "parted", "undone", "compared", "samples", "repro", "warnings"]
UNIT = ["node", "op", "tensor", "own_db", "steps", "max_abs_error", "pattern", "cause"]
ON_DEVICE = ["kind", "target", "first", "layers", "parted", "compared", "samples", "repro", "warnings"]
MEASUREMENT = ["runtime", "threads", "warm_up", "runs", "models", "gate"]
TIMED = [
    *("path", "runtime", "bytes", "p50_ms", "p90_ms", "p99_ms", "ratio_to_first", "ratio_interval", "slower"),
    *("peak_memory_bytes", "model_memory_bytes", "ops", "nodes", "blame"),
]
REWRITING = [
    *("output", "target", "rules", "operators", "validation", "requantized_weights", "explain", "warnings"),
]
VALIDATION = [
    *("validation_samples", "validated_rewrites", "rewriting_identical", "rewriting_sqnr_db", "steps_moved"),
    "kernels_saturate",
]


@pytest.fixture
def told(zoo, tmp_path):
    """The JSON of a command about a small CNN; `{quantized}` in its flags is that model on grids for a device."""
    model, data = zoo.model("residual_cnn"), zoo.data("residual_cnn")

    def call(command, *flags, device="cpu"):
        path = tmp_path / f"{device}.onnx"
        if "{quantized}" in flags:
            quantize(model, data=data, device=device, effort="fast", output=path)
        given = [str(path) if flag == "{quantized}" else str(model) if flag == "{model}" else flag for flag in flags]
        inputs = [] if command in ("inspect", "probe") else ["--data", str(data)]
        found = CliRunner().invoke(app, [command, *given, *inputs, "--json"], catch_exceptions=False)
        return json.loads(found.stdout)

    return call


def test_analyze(told):
    found = told("analyze", "{model}", "--device", "qnn", "--effort", "fast")
    assert list(found) == ANALYSIS and found["npu_nodes"]
    assert all(list(node) == NODE for node in found["npu_nodes"])
    every = told("analyze", "{model}", "--device", "all", "--effort", "fast")
    assert list(every) == ["targets"] and all(list(one) == ANALYSIS for one in every["targets"])


def test_inspect(told):
    found = told("inspect", "{model}")
    assert list(found) == FACTS and found["quantized"] is None
    assert found["inputs"] == [{"name": "image", "dtype": "float", "shape": [1, 3, 32, 32]}]


def test_debug_of_two_models(told):
    found = told("debug", "{model}", "{quantized}")
    assert list(found) == BISECTION and (found["kind"], found["first"]) == ("models", None)
    assert found["layers"] and all(list(layer) == LAYER for layer in found["layers"])


@pytest.mark.qnn
def test_debug_on_a_device(told):
    found = told("debug", "{quantized}", "--device", "qnn", device="qnn")
    assert list(found) == ON_DEVICE and (found["kind"], found["first"]) == ("device", None)
    assert found["layers"] and all(list(layer) == UNIT for layer in found["layers"])


def test_perf(told):
    found = told("perf", "{model}", "{quantized}", "--runs", "3")
    assert list(found) == MEASUREMENT and found["gate"] is None
    assert all(list(model) == TIMED and model["ops"] and model["nodes"] for model in found["models"])


def test_rewrite(told, tmp_path):
    found = told("rewrite", "{quantized}", "--explain", "", "-o", str(tmp_path / "rewritten.onnx"))
    assert list(found) == REWRITING and list(found["validation"]) == VALIDATION
    assert found["rules"] and all(list(rule) == ["rule", "exactness", "count"] for rule in found["rules"])
    assert found["explain"] and all(list(one) == ["rule", "node", "reason"] for one in found["explain"])


@pytest.mark.openvino
def test_probe(told, tmp_path):
    found = told("probe", "--device", "openvino", "--op", "Relu", "-o", str(tmp_path / "answers.json"))
    assert list(found) == ["library", "output", "answers", "wrong"] and sum(found["answers"].values()) > 0
