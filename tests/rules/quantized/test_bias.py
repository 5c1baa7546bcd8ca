"""Constants after a convolution of integers: where they become its bias and scales, and with which numbers not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from intact.matching.rewriter import apply
from intact.model import query
from intact.rules.quantized import accumulator, bias, conv_bias
from intact.rules.quantized.tail import of_operator
from tests.builder import Net
from tests.rules.proof.harness import fired, integers, refused
from tests.rules.proof.interpreter import evaluate
from tests.rules.quantized.cases.bias import MICROSOFT, X_SCALE, conv, float_conv, qlinear_conv

u8 = np.uint8
CONV = conv(np.random.default_rng(0), (u8, np.int8), (1, 1, 2), per_channel=True, bias=True)


def added(c=CONV, ratio=1.0, k=None, op="QLinearAdd", k_scale=0.01):
    """QLinearConv, then an operator with a constant of one byte for each channel."""
    net = Net()
    k = np.full(c.column, 130, u8) if k is None else k
    value = (qlinear_conv(net, c), c.mid_scale, c.mid_zero)
    grid = (np.float32(c.mid_scale / ratio), u8(99))
    net.op(op, *value, k, np.float32(k_scale), u8(120), *grid, _domain=MICROSOFT)
    return net.model({"x": c.x}, "t1")


def arithmetic(op, constant, c=CONV, ratio=1.0, zero=None):
    """QLinearConv, DQ, an operator with a constant, Q."""
    net = Net()
    real = net.dequantize(qlinear_conv(net, c), c.mid_scale, c.mid_zero)
    net.quantize(net.op(op, real, constant), c.mid_scale / ratio, u8(99) if zero is None else zero)
    return net.model({"x": c.x}, "t3")


def requantized(ratio, zero=None, factor=1.0, shift=0):
    """QLinearConv, DQ with a factor and a shift in its grid, Q."""
    net = Net()
    real = net.dequantize(qlinear_conv(net, CONV), CONV.mid_scale * factor, u8(CONV.mid_zero + shift))
    net.quantize(real, CONV.mid_scale / ratio, u8(99) if zero is None else zero)
    return net.model({"x": CONV.x}, "t2")


def normed(real_of, gamma, var=1.0, **attributes):
    net = Net()
    real = real_of(net)
    statistics = [np.full(CONV.channels, value, np.float32) for value in (gamma, 0.1, 0.2, var)]
    last = net.op("BatchNormalization", real, *statistics, **attributes)
    return net.model({"x": CONV.x}, net.quantize(last, CONV.mid_scale, u8(128)))


def coarse(factor, shift):
    """A norm after sums of large steps: of two channels the first one moves, and the second one does not."""
    net, scales = Net(), np.full(2, 0.3, np.float32)
    grids = (np.float32(0.5), u8(128), np.ones((2, 1, 1), np.int8), scales, np.int8([0, 0]), np.float32(0.5), u8(128))
    real = net.dequantize(net.op("QLinearConv", "x", *grids), 0.5, u8(128))
    statistics = np.float32([[factor, 0.1], [shift, 0], [0, 0], [1, 1]])
    last = net.op("BatchNormalization", real, *statistics, epsilon=0.0)
    return net.model({"x": np.zeros((1, 1, 4), u8)}, net.quantize(last, 0.5, u8(128)))


def of_integers(net):
    return net.dequantize(qlinear_conv(net, CONV), CONV.mid_scale, CONV.mid_zero)


def of_floats(net):
    return float_conv(net, CONV, 1)


def in_float(op, constant, c=CONV, y_scale=None):
    net = Net()
    last = net.op(op, float_conv(net, c, 1), constant)
    return net.model({"x": c.x}, net.quantize(last, c.mid_scale if y_scale is None else y_scale, u8(128)))


def between_grids(x_scale=X_SCALE, w_axis=0, w_scale=0.01):
    """Q(Conv(DQ(x), DQ(w)) + 1), with grids that not every rule takes."""
    net = Net()
    weight = net.dequantize(np.ones((2, 2, 1), np.int8), w_scale, np.zeros(np.shape(w_scale), np.int8), axis=w_axis)
    data = net.dequantize("x", x_scale, np.full(np.shape(x_scale), 3, u8), axis=1)
    last = net.op("Add", net.op("Conv", data, weight), np.ones((2, 1), np.float32))
    return net.model({"x": np.zeros((1, 2, 4), u8)}, net.quantize(last, 0.5, u8(128)))


def column(value):
    return np.full(CONV.column, value, np.float32)


def columns(*values):
    return np.array(values, np.float32).reshape(CONV.column)


narrow = dataclasses.replace(CONV, mid_scale=np.float32(CONV.mid_scale / 100))
hidden_relu = dataclasses.replace(CONV, mid_zero=u8(0))
heavy = dataclasses.replace(CONV, bias=np.full(CONV.channels, 2**31 - 2000, np.int32), mid_scale=np.float32(1e6))
# Almost as many steps of the accumulator as int32 holds: no room is left for sums.
ALMOST = (2**31 - 2000) * float((X_SCALE * CONV.w_scale).min())
FLOAT_CONV = ["DequantizeLinear", "DequantizeLinear", "DequantizeLinear", "Conv", "QuantizeLinear"]

FIRES = [
    (bias.FoldQLinearAdd, added(), ["QLinearConv"]),
    (bias.FoldQLinearAdd, added(ratio=1.99), ["QLinearConv"]),
    (bias.FoldQLinearMul, added(op="QLinearMul", k_scale=0.1), ["QLinearConv"]),
    (bias.FoldRequantize, requantized(1.9), ["QLinearConv"]),
    (bias.FoldRequantize, requantized(1.0, factor=1.7), ["QLinearConv"]),
    (bias.FoldRequantize, requantized(0.4, factor=0.3, shift=7), ["QLinearConv"]),
    (bias.FoldArithmetic, arithmetic("Add", column(1.5)), ["QLinearConv"]),
    (bias.FoldArithmetic, arithmetic("Sub", np.float32(1.5)), ["QLinearConv"]),
    (bias.FoldArithmetic, arithmetic("Mul", column(0.7)[0]), ["QLinearConv"]),
    (bias.FoldArithmetic, arithmetic("Div", column(2)), ["QLinearConv"]),
    (bias.FoldNorm, normed(of_integers, 1.5), ["QLinearConv"]),
    (conv_bias.FoldArithmeticIntoConv, in_float("Add", column(1.5)), FLOAT_CONV),
    (conv_bias.FoldArithmeticIntoConv, between_grids(w_scale=[0.01, 0.02]), FLOAT_CONV),
    (conv_bias.FoldArithmeticIntoConv, in_float("Div", column(2)), FLOAT_CONV),
    (conv_bias.FoldNormIntoConv, normed(of_floats, 1.5), FLOAT_CONV),
]
REFUSES = [
    (bias.FoldQLinearAdd, added(narrow), "but the intermediate grid covers"),
    (bias.FoldQLinearAdd, added(hidden_relu), "but the intermediate grid covers 0 to"),
    (bias.FoldQLinearAdd, added(ratio=2.01), "more than 2 times its scale"),
    (bias.FoldQLinearAdd, added(heavy), "more than int32 holds"),
    (bias.FoldQLinearAdd, added(k=np.zeros((1, 1, 3, 3), u8)), "shape [1, 1, 3, 3], not one number for each of 6"),
    (bias.FoldQLinearMul, added(op="QLinearMul", k=np.full(CONV.column, 110, u8)), "a factor of -0.1 cannot go into"),
    (bias.FoldQLinearMul, added(op="QLinearMul", k_scale=0.3), "more than 2 times its scale"),
    (bias.FoldRequantize, requantized(1.0, np.int8(0)), "the result is int8, the convolution writes uint8"),
    (bias.FoldRequantize, requantized(2.5), "more than 2 times its scale"),
    (bias.FoldRequantize, requantized(1.0, factor=2.5), "more than 2 times its scale"),
    (bias.FoldArithmetic, arithmetic("Mul", column(-1)), "a factor of -1 cannot go into a scale"),
    (bias.FoldArithmetic, arithmetic("Mul", columns(1, 1, 1, 1, 1, 2.1)), "more than 2 times its scale"),
    (bias.FoldArithmetic, arithmetic("Div", column(0)), "a factor of inf cannot go into a scale"),
    (bias.FoldArithmetic, arithmetic("Add", column(np.nan)), "the constant is not finite"),
    (bias.FoldArithmetic, arithmetic("Add", column(1), narrow), "but the intermediate grid covers"),
    (bias.FoldNorm, coarse(1.9, 0.125), "some results would move by 2 steps"),
    (bias.FoldNorm, normed(of_integers, -1), "cannot go into a scale, which is positive"),
    (conv_bias.FoldArithmeticIntoConv, in_float("Mul", column(0)), "a factor of 0 cannot go into a scale"),
    (conv_bias.FoldArithmeticIntoConv, in_float("Add", column(1e9)), "steps of the accumulator, more than int32 holds"),
    (conv_bias.FoldArithmeticIntoConv, in_float("Add", column(ALMOST)), "accumulators may reach"),
    (conv_bias.FoldArithmeticIntoConv, in_float("Add", column(1), y_scale=1e-5), "a step of the accumulator is"),
    (
        conv_bias.FoldArithmeticIntoConv,
        between_grids(w_scale=[0.01, 0.02], w_axis=1),
        "the scales of the weight are not one for each output channel",
    ),
    (conv_bias.FoldArithmeticIntoConv, between_grids(w_scale=[0.01, 0.0]), "a step of the accumulator is 0.0002"),
    (conv_bias.FoldArithmeticIntoConv, between_grids([0.1, 0.2]), "input has 2 numbers, not one constant scale"),
    (conv_bias.FoldNormIntoConv, normed(of_floats, 0), "a factor of 0 cannot go into a scale"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES)
def test_a_rule_fires(rule, model, left):
    assert sorted(fired(rule(), model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_the_numbers(rule, model, reason):
    assert reason in refused(rule(), model)


def test_the_bias_is_in_steps_of_the_accumulator():
    done = apply(added(), [bias.FoldQLinearAdd()])
    (node,) = done.model.graph
    added_steps = query.constant(node.inputs[8]) - CONV.bias
    np.testing.assert_array_equal(added_steps, np.rint(0.1 / (X_SCALE * CONV.w_scale).astype(np.float64)))


def test_a_factor_goes_into_the_scales_of_its_channels_alone():
    factors = np.array([1, 1, 0.7, 1, 1, 0.5], np.float32)
    done = apply(arithmetic("Mul", columns(*factors)), [bias.FoldArithmetic()])
    (node,) = done.model.graph
    np.testing.assert_allclose(query.constant(node.inputs[4]), CONV.w_scale * factors, rtol=1e-6)


def test_an_intermediate_tensor_that_others_use_stays():
    model = added()
    model.graph.outputs.append(model.graph[0].outputs[0])
    assert not apply(model, [bias.FoldQLinearAdd()]).applications


def test_a_computed_weight_is_refused():
    net = Net()
    w = net.op("Identity", "w")
    value = net.op("QLinearConv", "x", X_SCALE, u8(3), w, np.float32(0.1), u8(3), np.float32(9), u8(3))
    net.op(
        "QLinearAdd", value, np.float32(9), u8(3), u8(7), np.float32(1), u8(0), np.float32(9), u8(3), _domain=MICROSOFT
    )
    model = net.model({"x": CONV.x, "w": np.zeros((6, 8, 3, 3), u8)}, "t2")
    assert "the weight is computed" in refused(bias.FoldQLinearAdd(), model)


def test_the_reachable_sums_are_those_of_the_worst_inputs():
    rng = np.random.default_rng(1)
    for kind in ((u8, np.int8), (np.int8, np.int8), (u8, u8)):
        c = conv(rng, kind, (2, 1, 1), per_channel=True, bias=True)
        net = Net()
        found = accumulator.accumulator(net.model({"x": c.x}, qlinear_conv(net, c)).graph[0])
        low, high = np.iinfo(kind[0]).min - int(c.x_zero), np.iinfo(kind[0]).max - int(c.x_zero)
        weights = c.w.astype(int) - c.w_zero.astype(int).reshape(-1, 1, 1)
        for channel, row in enumerate(weights.reshape(len(weights), -1)):
            products = np.sort(np.stack([row * low, row * high]), axis=0)
            assert found.low[channel] == c.bias[channel] + products[0].sum()
            assert found.high[channel] == c.bias[channel] + products[1].sum()


def brute_force(acc, tail):
    """The largest difference between rounding twice and once, over every sum that can occur."""
    sums = np.stack([np.arange(low, high + 1) for low, high in zip(acc.low, acc.high, strict=True)])
    through = tail.run(accumulator._rounded(acc, sums)).astype(int)
    return np.abs(through - accumulator._at_once(acc, tail, sums).astype(int)).max()


@pytest.mark.parametrize("ratio", [1.9, 1.99, 2.0, 2.2, 3.0])
@pytest.mark.parametrize("shift", [0.0, 0.5, 0.25, 0.4999, 0.1, 0.3])
@pytest.mark.parametrize(("w", "unit"), [(100, 0.006), (1, 0.3), (1, 0.5)])
def test_the_sums_that_are_looked_at_show_the_largest_difference_there_is(ratio, shift, w, unit):
    """The proof looks at a few sums; this looks at all of them, a `unit` of the output's step apart."""
    net, y_scale = Net(), np.float32(0.5)
    mid_scale, x_scale = np.float32(y_scale * ratio), np.float32(unit * y_scale / 0.3)
    w = np.full((1, 1, 1), w, np.int8)
    value = net.op("QLinearConv", "x", x_scale, u8(128), w, np.float32([0.3]), np.int8([0]), mid_scale, u8(128))
    k = np.full((1, 1, 1), 1, u8)
    step = np.float32(max(shift, 1e-6) * y_scale)
    net.op("QLinearAdd", value, mid_scale, u8(128), k, step, u8(0), y_scale, u8(128), _domain=MICROSOFT)
    model = net.model({"x": np.zeros((1, 1, 4), u8)}, "t1")
    first, last = model.graph
    acc = accumulator.accumulator(first)
    tail = of_operator(acc.head(), last)
    sums = accumulator._critical(acc)
    seen = np.abs(
        tail.run(accumulator._rounded(acc, sums)).astype(int) - accumulator._at_once(acc, tail, sums).astype(int)
    ).max()
    assert seen == brute_force(acc, tail)


def test_the_bias_that_a_convolution_has_stays_part_of_the_sum():
    """(bias + c) · 1, in steps of x_scale · w_scale: 700 steps of 0.001 and 0.3 are 1000 steps."""
    net = Net()
    data, weight = net.dequantize("x", 0.1, u8(128)), net.dequantize(np.ones((2, 3, 1), np.int8), 0.01, np.int8(0))
    real = net.op("Conv", data, weight, np.float32([0.7, -0.7]))
    y = net.quantize(net.op("Add", real, np.float32([[0.3], [0.2]])), 0.05, u8(100))
    done = apply(net.model({"x": np.zeros((1, 3, 4), u8)}, y), [conv_bias.FoldArithmeticIntoConv()])
    assert done.applications
    (folded,) = (node for node in done.model.graph if node.op_type == "Conv")
    np.testing.assert_array_equal(query.constant(folded.inputs[2].producer().inputs[0]), [1000, -500])
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 4)).astype(u8)
    sums = (x - 128.0).sum(axis=1, keepdims=True) * 0.1 * 0.01 + np.array([[1.0], [-0.5]])
    levels = np.clip(np.rint(sums / 0.05) + 100, 0, 255)
    assert np.abs(evaluate(done.model, {"x": x})[y] - levels).max() <= 1


def test_a_bias_that_is_computed_stays():
    net = Net()
    data, weight = net.dequantize("x", 0.1, u8(128)), net.dequantize(np.ones((2, 3, 1), np.int8), 0.01, np.int8(0))
    last = net.op("Add", net.op("Conv", data, weight, "b"), np.float32([[0.3], [0.2]]))
    model = net.model({"x": np.zeros((1, 3, 4), u8), "b": np.zeros(2, np.float32)}, net.quantize(last, 0.05, u8(100)))
    assert "the bias is computed, not constant" in refused(conv_bias.FoldArithmeticIntoConv(), model)


def test_activations_of_16_bits_take_a_bias_too():
    net, rng = Net(), np.random.default_rng(0)
    weight = net.dequantize(integers(rng, np.int8, (4, 3, 3)), 0.01, np.int8(0))
    real = net.op("Conv", net.dequantize("x", 0.001, np.uint16(32768)), weight)
    net.quantize(net.op("Add", real, np.ones((4, 1), np.float32)), 0.001, np.uint16(32768))
    model = net.model({"x": np.zeros((1, 3, 8), np.uint16)}, "t4")
    assert "Add" not in fired(conv_bias.FoldArithmeticIntoConv(), model)
