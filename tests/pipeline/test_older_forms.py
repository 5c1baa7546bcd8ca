"""Models that came quantized, for a toolchain that reads older opsets only."""

from __future__ import annotations

import numpy as np
import pytest

from intact.events import Log, Silence
from intact.model import io
from intact.pipeline.stages import prepare
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from tests.builder import Net

ROCKCHIP = BuildConfig.from_dict({"strict": False, "compile": {"device": "rknn", "soc": "rk3588"}})


def between_grids(op, **attributes):
    """An operator in float between layers on grids, as portable quantized models have it."""
    net, rng = Net(), np.random.default_rng(0)
    x = net.dequantize(net.quantize(net.input("x", (4, 16)), 0.03, np.int8(0)), 0.03, np.int8(0))
    for _ in range(2):
        weight = net.dequantize(rng.integers(-127, 128, (16, 16)).astype(np.int8), 0.005, np.int8(0))
        x = net.op(op, net.op("MatMul", x, weight), **attributes)
        x = net.dequantize(net.quantize(x, 0.03, np.int8(0)), 0.03, np.int8(0))
    return net.model({}, x)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_operators_of_newer_opsets_are_written_in_older_ones(approximate, tmp_path):
    """Gelu came with opset 20, and Rockchip's compiler reads 19."""
    path = tmp_path / "model.onnx"
    io.save(between_grids("Gelu", approximate=approximate), path)
    prepared = prepare(path, ROCKCHIP, Log(Silence()))
    assert prepared.model.opset_imports[""] == 19
    assert "Gelu" not in {node.op_type for node in prepared.model.graph}
    row = {"x": np.random.default_rng(1).normal(0, 1, (4, 16)).astype(np.float32)}
    (given,), (found,) = (ort_cpu.run(model, row).values() for model in (prepared.source.model, prepared.model))
    # Floats that are rounded in another order are a step of the grid apart at most.
    assert np.abs(given - found).max() <= 0.0301 and np.mean(given != found) < 0.02
    assert np.abs(given).max() > 0.5
