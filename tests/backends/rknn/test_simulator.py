"""The vendor's simulator against ONNX Runtime: every layer of our int8 models within one step of its grid."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from intact.backends.rknn.backend import BACKEND, RknnSimulator
from intact.events import Log, Silence
from intact.model import io
from intact.pipeline import execution
from intact.pipeline.stages import prepare
from intact.rules.quantized import families
from intact.search.debug.device import DeviceComparison
from intact.settings.config import BuildConfig
from intact.targets.registry import load_target
from tests.builder import Net
from tests.zoo import ZOO, data, depthwise_cnn, residual_cnn
from tests.zoo.large import mobilenet_v2, resnet50

EXAMPLES = Path(__file__).parents[3] / "examples"
MODELS = {
    "residual_cnn": residual_cnn,
    "depthwise_cnn": depthwise_cnn,
    "resnet50": partial(resnet50, image=64, width=16),
    "mobilenet_v2": partial(mobilenet_v2, image=64, width=0.25),
    "vit": ZOO["vit"],
    "bert": ZOO["bert"],
    **{path.parent.name: partial(onnx.load, path) for path in sorted(EXAMPLES.glob("*/model.onnx"))},
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
# Where there is no half precision, the compiler looks a Tanh up in a table of too few points (probed over all inputs).
LOOKED_UP = {("rv1106", "Tanh"): 2.001}


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
    products = [error for error in found if {"Conv", "Gemm"} & set(error.unit.ops)]
    assert len(products) == sum(node.op_type in ("Conv", "Gemm") for node in deployed.graph)
    most = {error.unit.node: max(LOOKED_UP.get((soc, op), STEP) for op in error.unit.ops) for error in found}
    assert {node: off for node, off in steps.items() if off > most[node]} == {}


def _sum(scale):
    """A convolution and a sum with another one, with a grid of this scale between the two."""
    rng, net = np.random.default_rng(0), Net()
    zero = np.int8(0)

    def conv(x):
        weight = rng.integers(-127, 128, (32, 32, 1, 1), np.int8)
        weight = net.dequantize(weight, np.full(32, 0.002), np.zeros(32, np.int8), axis=0)
        return net.op("Conv", x, weight, kernel_shape=[1, 1])

    x = net.qdq(net.input("x", (1, 32, 8, 8)), 0.03, zero)
    other = net.qdq(conv(x), 0.05, zero)
    inner = net.qdq(conv(other), scale, zero)
    return net.normalized(net.qdq(net.op("Add", inner, net.qdq(conv(x), 0.06, zero)), 0.1, zero))


@pytest.mark.rknn
def test_what_a_convolution_adds_to_is_not_rounded_before_the_sum(tmp_path):
    """So `search/mixed/room.py` counts no noise there."""
    target = load_target("rknn", soc="rk3588")
    device = execution.device_of(target, BuildConfig.from_dict({"compile": {"device": "rknn"}}).compile)
    row = {"x": np.random.default_rng(1).standard_normal((1, 32, 8, 8)).astype(np.float32)}
    found = []
    for scale in (0.05, 2.0):
        model = _sum(scale)
        layers = BACKEND.place(model, device).layers
        assert [layer.kind for layer in layers] == ["Conv", "Conv", "ConvAdd"]
        path = io.save(model, tmp_path / f"{scale}.onnx")[0]
        found += [next(iter(RknnSimulator().run(path, [row], device)[0].values()))]
    assert np.array_equal(*found)


@pytest.mark.rknn
@pytest.mark.parametrize("soc", ["rk3588", "rv1106"])
@pytest.mark.parametrize(
    ("pool", "attributes", "layers"),
    [
        # The compiler computes it on the grid of its input; means are smaller, and would get a finer one of their own.
        ("AveragePool", {"kernel_shape": [4, 4], "strides": [4, 4]}, {"AveragePool": 1}),
        # Of more than 7 x 7 numbers the compiler rounds twice, to one side.
        ("GlobalAveragePool", {}, {"ReduceMean": 1, "Conv": 4}),
    ],
)
def test_a_mean_is_within_a_step_of_what_the_grid_behind_it_holds(soc, pool, attributes, layers, tmp_path):
    rng, net = np.random.default_rng(0), Net()
    x = net.input("x", (1, 16, 56, 56))
    y = net.op("Conv", x, rng.standard_normal((32, 16, 1, 1)).astype(np.float32))
    y = net.op(pool, y, **attributes)
    y = net.op("Conv", y, rng.standard_normal((8, 32, 1, 1)).astype(np.float32))
    io.save(net.normalized(y), tmp_path / "m.onnx")
    rows = rng.standard_normal((8, 16, 56, 56)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=rows)
    quant = {"load_path": str(tmp_path / "data.npz"), "effort": "fast"}
    config = BuildConfig.from_dict({"precision": "int8", "quant": quant, "compile": {"device": "rknn", "soc": soc}})
    prepared = prepare(tmp_path / "m.onnx", config, Log(Silence()))
    deployed = families.rewrite(prepared.model, prepared.target).model
    device = execution.device_of(prepared.target, config.compile)
    compared = DeviceComparison(deployed, [{"x": rows[:1]}], RknnSimulator(), device)
    errors = list(compared.errors())
    assert Counter(op for error in errors for op in error.unit.ops if op in layers) == layers
    steps = {error.unit.node: _steps(compared, error) for error in errors}
    assert max(steps.values()) <= STEP


def _steps(compared, error):
    """The greatest error of a layer in steps of its grid; every layer of these models is on one, or is the last."""
    grid = compared.units.grids.get(error.unit.tensor)
    if grid is None:
        assert error.unit.tensor in compared.units.ends
        return 0.0
    return error.max_abs_error / float(np.max(grid.write.scale))
