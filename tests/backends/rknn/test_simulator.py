"""The vendor's simulator against ONNX Runtime: every layer of our int8 models within one step of its grid."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.backends.rknn.backend import RknnSimulator
from intact.events import Log, Silence
from intact.pipeline import execution
from intact.pipeline.stages import prepare
from intact.rules.quantized import families
from intact.search.debug.device import DeviceComparison
from intact.settings.config import BuildConfig
from tests.zoo import data, depthwise_cnn, residual_cnn
from tests.zoo.large import mobilenet_v2, resnet50

MODELS = {
    "residual_cnn": residual_cnn,
    "depthwise_cnn": depthwise_cnn,
    "resnet50": partial(resnet50, image=64, width=16),
    "mobilenet_v2": partial(mobilenet_v2, image=64, width=0.25),
    "digits_cnn": partial(onnx.load, Path(__file__).parents[3] / "examples/digits_cnn/model.onnx"),
}
CHIPS = ("rk3588", "rk3576", "rk3566", "rv1106")
SHORT = ("depthwise_cnn", "rk3588")
EVERY = [
    pytest.param(name, soc, marks=[] if (name, soc) == SHORT else [pytest.mark.slow])
    for name in MODELS
    for soc in CHIPS
]
# Half a step more or less in float is a step of integers; what is left is the rounding of floats.
STEP = 1.001


@pytest.mark.rknn
@pytest.mark.parametrize(("name", "soc"), EVERY)
def test_every_layer_is_within_one_step_of_the_cpu(name, soc, tmp_path):
    """Each layer by itself, fed with what the layers before it give on the CPU."""
    model, rows = MODELS[name](), 8
    onnx.save(model, tmp_path / "m.onnx")
    inputs = data(model, rows)
    np.savez(tmp_path / "data.npz", **inputs)
    quant = {"load_path": str(tmp_path / "data.npz"), "effort": "fast", "rescue": False}
    settings = {"precision": "int8", "quant": quant, "compile": {"device": "rknn", "soc": soc}}
    config = BuildConfig.from_dict(settings)
    prepared = prepare(tmp_path / "m.onnx", config, Log(Silence()))
    deployed = families.rewrite(prepared.model, prepared.target).model
    sample = [{key: value[:1] for key, value in inputs.items()}]
    device = execution.device_of(prepared.target, config.compile)
    compared = DeviceComparison(deployed, sample, RknnSimulator(), device)
    found = compared.errors()
    steps = {error.unit.node: _steps(compared, error) for error in found}
    convolutions = [error for error in found if "Conv" in error.unit.ops]
    assert len(convolutions) == sum(node.op_type == "Conv" for node in deployed.graph)
    assert {node: off for node, off in steps.items() if off > STEP} == {}


def _steps(compared, error):
    """The greatest error of a layer in steps of its grid; every layer of these models is on one, or is the last."""
    grid = compared.units.grids.get(error.unit.tensor)
    if grid is None:
        assert error.unit.tensor in compared.units.ends
        return 0.0
    return error.max_abs_error / float(np.max(grid.write.scale))
