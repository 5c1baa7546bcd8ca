"""Models in the form that Rockchip's compiler reads."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends.base import Device
from intact.backends.rknn import client
from intact.backends.rknn.backend import platform_of
from intact.backends.rknn.readable import OPSET, readable
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.model import io
from intact.runtime import ort_cpu, toolchains
from intact.targets.registry import load_target
from tests.builder import Net

RNG = np.random.default_rng(0)
STEP, ZERO = 0.05, np.int8(-1)


def layer(net, x, *, on_grid):
    """A convolution of 16 channels, in integers or in float."""
    levels = RNG.integers(-127, 128, (16, 16, 1, 1)).astype(np.int8)
    if not on_grid:
        return net.op("Conv", x, (levels * 0.01).astype(np.float32))
    weight = net.dequantize(levels, np.full(16, 0.01), np.zeros(16, np.int8), axis=0)
    return net.qdq(net.op("Conv", x, weight), STEP, ZERO)


def shared(other):
    """A tensor on a grid that a layer in integers reads, and another reader, or none: the model returns it."""
    net = Net("shared")
    grid = layer(net, net.qdq(net.input("x", (1, 16, 8, 8)), STEP, ZERO), on_grid=True)
    integers = layer(net, grid, on_grid=True)
    return net.normalized(integers, grid if other is None else other(net, grid))


def in_float(net, grid):
    return layer(net, grid, on_grid=False)


def moved(net, grid):
    return net.op("Sigmoid", grid)


def summed(net, grid):
    """A sum with a float, which goes on both to a grid and in float."""
    total = net.op("Add", grid, layer(net, grid, on_grid=False))
    return net.op("Add", total, layer(net, net.qdq(total, STEP, ZERO), on_grid=True))


def in_integers(net, grid):
    return layer(net, grid, on_grid=True)


def dequantizers(model):
    """How many nodes bring the shared integers back, and by how many nodes each is read."""
    found = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    by_source = [[node for node in found if node.inputs[0] is each.inputs[0]] for each in found]
    most = max(by_source, key=lambda nodes: (len(nodes), sum(len(node.outputs[0].uses()) for node in nodes)))
    return sorted(len(node.outputs[0].uses()) for node in most)


@pytest.mark.parametrize(
    ("other", "uses"), [(in_float, [1, 1]), (moved, [1, 1]), (summed, [1, 2]), (None, [0, 1]), (in_integers, [2])]
)
def test_readers_in_integers_and_others_share_no_node_and_the_numbers_stay(other, uses):
    model = shared(other)
    found = readable(model)
    assert found.opset_imports[""] <= OPSET and dequantizers(found) == uses
    feeds = {"x": RNG.standard_normal((1, 16, 8, 8)).astype(np.float32)}
    expected, got = ort_cpu.run(model, feeds), ort_cpu.run(found, feeds)
    assert expected.keys() == got.keys() and all(np.array_equal(expected[name], got[name]) for name in expected)


@pytest.mark.skipif(toolchains.find(TOOLCHAIN) is None, reason=f"{TOOLCHAIN.package} is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("other", [in_float, moved, summed, None, in_integers])
def test_the_compiler_takes_a_grid_with_readers_of_both_kinds(other, tmp_path):
    path = io.save(readable(shared(other)), tmp_path / "m.onnx")[0]
    platform = platform_of(Device.of(load_target("rknn"), 100.0, {}))
    found = client.compile_rknn(path, None, platform, timeout=100.0)
    assert found.error is None
    assert [layer.type for layer in found.report.layers if layer.kind == "Conv"].count("INT8") >= 2
