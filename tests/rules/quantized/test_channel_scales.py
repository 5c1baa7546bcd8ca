"""Scales for each channel of an activation: neighbours take over what they differ by, or the reason is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.backends import compiling
from intact.model import query
from intact.rules.quantized import families
from intact.rules.quantized.channel_scales import FoldFactorIntoDepthwise, OneScaleForChannels
from intact.targets import validate as validation
from intact.targets.registry import load_target
from tests.builder import Net
from tests.rules.proof.harness import fired, integers, refused
from tests.rules.quantized.cases.channel_scales import CHANNELS, by_channel, depthwise

X = np.zeros((1, 4, 8, 8), np.uint8)
SCALES = np.linspace(0.01, 0.04, CHANNELS, dtype=np.float32)
LOW = np.zeros(CHANNELS, np.uint8)


def network(kind="channel", clip="Relu", *, reader=None, after=None):
    """What NNCF writes: a layer, a grid with scales for each channel, a depthwise layer."""
    net, rng = Net(), np.random.default_rng(0)
    real = by_channel(rng, net, kind, clip, np.uint8)
    outputs = [depthwise(net, rng, real) if reader is None else reader(net, real)]
    outputs += [] if after is None else [after(net, real)]
    return net.model({"x": X}, *outputs)


def from_a_sum(scales=SCALES, zeros=LOW, *, most=None, y_zeros=None):
    """The same behind a Conv without grids, with these scales and zero points."""
    net, rng = Net(), np.random.default_rng(0)
    weight = rng.normal(size=(CHANNELS, 4, 1, 1)).astype(np.float32)
    y = net.op("Conv", net.dequantize("x", 0.02, np.uint8(128)), weight)
    y = net.op("Relu", y) if most is None else net.op("Clip", y, np.float32(most[0]), np.float32(most[1]))
    real = net.dequantize(net.quantize(y, scales, zeros, axis=1), scales, zeros if y_zeros is None else y_zeros, axis=1)
    return net.model({"x": X}, depthwise(net, rng, real))


def dense(net, real):
    """A layer that adds all channels up."""
    weight = net.dequantize(np.ones((2, CHANNELS, 1, 1), np.int8), 0.1, np.int8(0))
    return net.op("Conv", real, weight)


def floats(net, real):
    """A depthwise layer whose weight is on no grid."""
    return net.op("Conv", real, np.ones((CHANNELS, 1, 1, 1), np.float32), group=CHANNELS)


def double(net, real):
    return net.op("Mul", real, np.float32(2))


@pytest.mark.parametrize("most", [255 * SCALES.max(), 100.0])
def test_a_clip_that_cuts_off_no_more_than_the_grid_becomes_a_relu(most):
    ops = fired(OneScaleForChannels(), from_a_sum(most=(0.0, most)))
    assert ops.count("Relu") == 1 and "Clip" not in ops


REFUSES = [
    (from_a_sum(np.full(1, 0.02, np.float32), np.zeros(1, np.uint8)), "it has no scale for each channel"),
    (from_a_sum(zeros=np.arange(CHANNELS, dtype=np.uint8)), "its zero points differ"),
    (from_a_sum(y_zeros=LOW + np.uint8(1)), "the zero points differ"),
    (from_a_sum(SCALES * 0), "its scales are not all positive"),
    (from_a_sum(most=(0.0, 254 * SCALES.max())), "the Clip cuts off values that the grid has"),
    (from_a_sum(most=(-1.0, 100.0)), "the Clip does not begin at 0"),
    (network(after=double), "the_t9 reads it, too: it is no Conv of it"),
    (network(reader=dense), "it is not depthwise"),
    (network(reader=floats), "its weight is on no grid"),
    (network(reader=lambda net, real: real), "an output of the model or nothing reads it"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSES, ids=[reason for _, reason in REFUSES])
def test_it_is_refused_with_the_reason(model, reason):
    assert reason in refused(OneScaleForChannels(), model)


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(-SCALES, "a factor is not positive"), (SCALES[:1].repeat(8), "one number for each of 6 channels")],
)
def test_a_factor_goes_into_no_weight_that_cannot_take_it(factor, reason):
    net = Net()
    shape = (-1, 1, 1) if factor.size == CHANNELS else (1, 1, 1, -1)
    result = depthwise(net, np.random.default_rng(0), net.op("Mul", "x", factor.reshape(shape)))
    model = net.model({"x": np.zeros((1, CHANNELS, 8, 8), np.float32)}, result)
    assert reason in refused(FoldFactorIntoDepthwise(), model)


def test_all_readers_take_over_their_part():
    """None of the factors that stand between the two rules is left."""
    net, rng = Net(), np.random.default_rng(0)
    real = by_channel(rng, net, "float", "Relu", np.uint8)
    model = net.model({"x": X}, *(depthwise(net, rng, real) for _ in range(3)))
    done = families.rewrite(model, load_target("qnn"))
    assert [item.rule for item in done.applications].count("fold_factor_into_depthwise") == 3
    assert "Mul" not in {node.op_type for node in done.model.graph}
    quantizers = [node for node in done.model.graph if node.op_type == "QuantizeLinear"]
    assert quantizers and all(query.is_scalar(node.inputs[1]) for node in quantizers)


def detector():
    """Two depthwise layers behind dense ones, with scales for each channel as NNCF writes them."""
    net, rng = Net(), np.random.default_rng(1)
    real = net.dequantize(net.quantize(net.input("x", (1, 4, 8, 8)), 0.02, np.uint8(128)), 0.02, np.uint8(128))
    for inside in (4, CHANNELS):
        weight = net.dequantize(integers(rng, np.int8, (CHANNELS, inside, 1, 1)), 0.005, np.int8(0))
        y = net.op("Relu", net.op("Conv", real, weight, rng.normal(size=CHANNELS).astype(np.float32)))
        real = net.dequantize(net.quantize(y, SCALES, LOW, axis=1), SCALES, LOW, axis=1)
        y = depthwise(net, rng, real)
        real = net.dequantize(net.quantize(y, 0.1, np.uint8(128)), 0.1, np.uint8(128))
    return net.model({}, real)


@pytest.mark.qnn
def test_the_npu_takes_the_whole_of_it(tmp_path: Path):
    target = load_target("qnn")
    assert target.soc is not None
    given = detector()
    before = validation.validate(given, target, strict=False)
    assert any("one scale per channel" in item.found for item in before)
    done = families.rewrite(given, target)
    assert not validation.validate(done.model, target, strict=False)
    compiled = compiling.compile(done.model, compiling.Device("qnn", 600, target.arch, target.soc.id), tmp_path)
    assert compiled.placement.npu_nodes and not compiled.placement.cpu_nodes
