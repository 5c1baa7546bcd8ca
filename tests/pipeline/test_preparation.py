"""Quantized models as their machine wants them, and the times of quantization: each phase has what it takes."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from intact.events import Log, Silence
from intact.pipeline import stages
from intact.quantization import float16, quantizing, stopwatch
from intact.quantization.improve import migrate
from intact.quantization.weight_only import packed_products
from intact.rules.float import masks
from intact.settings.config import BuildConfig
from tests.quantization.models import model

IMPROVE = importlib.import_module("intact.quantization.improve")

# What each function takes, by a clock that stands still otherwise, and the phase that this belongs to.
COSTS = [
    (quantizing, "plan", "planning", 1),
    (migrate, "Migration", "smoothing", 2),
    (quantizing, "observe_beside", "calibration", 4),
    (IMPROVE, "watch", "study", 8),
    (IMPROVE, "round_weights", "rounding", 16),
    (IMPROVE, "correct_biases", "correction", 32),
    (quantizing, "insert", "qdq_insertion", 64),
]
# Without improvement nothing watches beside the sketches.
PLAIN = [(quantizing, "observe", "calibration", 4)]
WITHOUT_GRIDS = [(float16, "convert", "calibration", 128), (packed_products, "pack", "rounding", 256)]


@pytest.fixture
def slowly(monkeypatch):
    """Lets every phase take its time by a clock that nothing else moves."""
    now = [1000.0]

    def taking(seconds, function):
        def slow(*args, **kwargs):
            now[0] += seconds
            return function(*args, **kwargs)

        return slow

    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for module, name, _, seconds in [*COSTS, *PLAIN, *WITHOUT_GRIDS]:
        monkeypatch.setattr(module, name, taking(seconds, getattr(module, name)))


def quantize_stage(folder, **settings):
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((32, 32)).astype(np.float32), "b": np.ones(32, np.float32)}
    source = model("float[1,4,32] x", "float[1,4,32] y", "m = MatMul(x, w)  y = Add(m, b)", **weights)
    ir.save(source, folder / "m.onnx")
    np.savez(folder / "rows.npz", x=rng.standard_normal((8, 4, 32)).astype(np.float32))
    quant = {"load_path": str(folder / "rows.npz"), **settings.pop("quant", {})}
    log = Log(Silence())
    stages.prepare(folder / "m.onnx", BuildConfig.from_dict({"quant": quant, **settings}), log)
    (stage,) = [stage for stage in log.stages if stage.name == "quantize"]
    return {name: seconds for name, seconds in stage.details.items() if name.endswith("_time_seconds")}


def test_every_phase_has_a_time_of_its_own(slowly, tmp_path):
    expected = {f"{phase}_time_seconds": seconds for _, _, phase, seconds in COSTS}
    assert quantize_stage(tmp_path, precision="uint8") == expected


def test_a_phase_that_is_left_out_takes_no_time(slowly, tmp_path):
    left_out = ("smoothing", "study", "rounding", "correction")
    expected = {f"{phase}_time_seconds": 0 if phase in left_out else seconds for _, _, phase, seconds in COSTS}
    assert quantize_stage(tmp_path, precision="uint8", quant={"effort": "fast"}) == expected


@pytest.mark.parametrize(
    ("precision", "phase", "seconds"), [("fp16", "calibration", 128), ("w8", "rounding", 256)], ids=["fp16", "w8"]
)
def test_without_grids_there_is_one_phase_and_no_insertion(slowly, tmp_path, precision, phase, seconds):
    found = quantize_stage(tmp_path, precision=precision, compile={"device": "cpu"})
    assert {name: taken for name, taken in found.items() if taken} == {f"{phase}_time_seconds": seconds}
    assert "qdq_insertion_time_seconds" in found


@pytest.mark.parametrize(("vnni", "expected"), [(True, "INT8"), (False, "UINT8")])
def test_what_is_assumed_of_vnni_decides_about_the_type_of_weights(zoo, vnni, expected):
    """Kernels for uint8 × int8 saturate without it; the other type stands for the same numbers."""
    quant = {"load_path": str(zoo.data("residual_cnn")), "effort": "fast", "samples": 2}
    asked = BuildConfig.from_dict({"precision": "uint8", "quant": quant, "compile": {"assume_vnni": vnni}})
    nodes = stages.prepare(zoo.model("residual_cnn"), asked, Log()).model.graph
    weights = [conv.inputs[1].producer().inputs[0] for conv in nodes if conv.op_type in ("Conv", "Gemm", "MatMul")]
    assert weights and {weight.dtype.name for weight in weights} == {expected}


@pytest.mark.parametrize(("device", "settled"), [("qnn", True), ("rknn", False)])
def test_masks_are_as_deep_as_floats_hold_where_scores_are_on_no_grid(zoo, device, settled):
    """Rockchip's NPU computes attention in half precision: nothing runs to see how deep a grid of scores would be."""
    quant = {"load_path": str(zoo.data("bert")), "effort": "fast", "samples": 2}
    settings = {"precision": "int8", "quant": quant, "strict": False, "compile": {"device": device}}
    settings |= {"precision": "uint8"} if device == "qnn" else {}
    prepared = stages.prepare(zoo.model("bert"), BuildConfig.from_dict(settings), Log())
    depths = {site.depth for site in masks.mask_sites(prepared.twin.model)}
    assert all(depth < 100 for depth in depths) if settled else depths == {masks.FLOAT_DEPTH}
    assert depths
