"""What other tools leave in float between grids gets one; what has a grid, or can have none, stays."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.rules.quantized import families
from intact.rules.quantized.left_in_float import QuantizeBias, RoundAfterMove, RoundAfterRelu
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from intact.targets.validate import validate
from tests.builder import Net
from tests.rules.proof.harness import fired, refused

F32, I8, U8 = np.float32, np.int8, np.uint8
RNG = np.random.default_rng(0)


def layer(op, shape, bias, *, x=(1, 4, 5, 5), x_scale=0.1, w_scale=0.01, axis=0, **attributes):
    """A layer between grids, and an input for it."""
    net, scales = Net(), np.broadcast_to(F32(w_scale), (shape[axis],))
    weight = net.dequantize(RNG.integers(-127, 128, shape).astype(I8), scales, np.zeros(len(scales), I8), axis=axis)
    y = net.op(op, net.dequantize("x", x_scale, U8(3)), weight, bias, **attributes)
    return net.model({"x": RNG.integers(0, 256, x).astype(U8)}, y)


def test_a_bias_of_every_layer_becomes_int32_in_steps_of_the_sums():
    bias = F32([0.7, -2.0])
    for model in (
        layer("Conv", (2, 4, 3, 3), bias),
        layer("ConvTranspose", (4, 2, 3, 3), bias, axis=1),
        layer("Gemm", (2, 4), bias, x=(3, 4), transB=1),
    ):
        done = rewriter.apply(model.clone(), [QuantizeBias()]).model
        source = next(node for node in done.graph if node.op_type[:4] in ("Conv", "Gemm")).inputs[2].producer()
        levels, steps = (source.inputs[index].const_value.numpy() for index in (0, 1))
        assert levels.dtype == np.int32 and levels.tolist() == [700, -2000] and np.allclose(steps, 0.001)
        feeds = {"x": RNG.integers(0, 256, [*model.graph.inputs[0].shape]).astype(U8)}
        before, after = (next(iter(ort_cpu.run(item, feeds).values())) for item in (model, done))
        assert np.abs(before - after).max() <= 0.0005 + 1e-5 * np.abs(before).max()
        assert rewriter.apply(done, [QuantizeBias()]).applications == ()


REFUSES = {
    "more than int32 holds": layer("Conv", (2, 4, 3, 3), F32([3e9, 0])),
    "not in steps of one channel": layer("ConvTranspose", (4, 2, 3, 3), F32([1, 2, 3, 4]), axis=1, group=2),
    "not in steps of one channel of the weight": layer("Gemm", (2, 4), F32([1, 2]), x=(3, 4), transB=1, beta=0.5),
    "not one for each output channel": layer("Gemm", (2, 4), F32([1, 2]), x=(3, 4), transB=1, axis=1),
    "the scale of input is 0": layer("Conv", (2, 4, 3, 3), F32([1, 2]), x_scale=0.0),
}


@pytest.mark.parametrize("reason", REFUSES)
def test_a_bias_without_a_place_among_the_sums_stays(reason):
    assert reason in refused(QuantizeBias(), REFUSES[reason])


def moved(behind, x=None):
    net = Net()
    read = net.dequantize("x" if x is None else x, 0.1, U8(3))
    return net.model({"x": np.zeros((2, 3), U8)}, *behind(net, net.op("Flatten", read)))


def test_what_only_moves_values_stays_on_their_grid():
    model = moved(lambda net, flat: [net.op("Neg", flat)])
    wanted = ["DequantizeLinear", "Flatten", "QuantizeLinear", "DequantizeLinear", "Neg"]
    assert fired(RoundAfterMove(), model) == wanted


def test_a_move_with_a_grid_behind_it_or_for_the_caller_alone_stays():
    for behind in (lambda net, flat: [net.quantize(flat, 0.2, U8(0))], lambda net, flat: [flat]):
        assert "has a grid, or no node reads it" in refused(RoundAfterMove(), moved(behind))


def test_a_constant_that_is_moved_stays():
    model = moved(lambda net, flat: [net.op("Add", flat, net.dequantize("x", 0.1, U8(3)))], np.zeros((2, 3), U8))
    assert "it moves a constant" in refused(RoundAfterMove(), model)


def test_a_relu_leaves_values_on_their_grid():
    net = Net()
    read = net.op("Relu", net.dequantize("x", 0.1, U8(3)))
    model = net.model({"x": np.zeros((2, 3), U8)}, net.op("Neg", read))
    wanted = ["DequantizeLinear", "Relu", "QuantizeLinear", "DequantizeLinear", "Neg"]
    assert fired(RoundAfterRelu(), model) == wanted


def test_a_relu_on_the_scales_of_channels_stays():
    net = Net()
    read = net.dequantize("x", F32([0.1, 0.2, 0.3]), np.zeros(3, U8), axis=1)
    model = net.model({"x": np.zeros((2, 3), U8)}, net.op("Neg", net.op("Relu", read)))
    assert "input" in refused(RoundAfterRelu(), model)


@pytest.mark.parametrize("dtype", [U8, np.uint16])
def test_a_hexagon_takes_a_relu_that_training_left_between_a_grid_and_a_layer(dtype):
    net, grid = Net(), (F32(0.01), dtype(7))
    x = net.op("Relu", net.dequantize(net.quantize("x", *grid), *grid))
    weight = net.dequantize(RNG.integers(-9, 9, (2, 3, 1, 1)).astype(I8), F32([0.1, 0.2]), np.zeros(2, I8), axis=0)
    y = net.dequantize(net.quantize(net.op("Conv", x, weight), *grid), *grid)
    before, target = net.model({"x": np.zeros((1, 3, 4, 4), F32)}, y), load_target("qnn", arch=73)
    after = families.rewrite(before.clone(), target).model
    found = [[violation.code for violation in validate(one, target, strict=False)] for one in (before, after)]
    assert "T102" in found[0] and found[1] == []
