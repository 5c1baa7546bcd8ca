"""Constant factors and shifts beside Q and DQ nodes: where the grid takes them, and why it does not."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching.rewriter import apply
from intact.model import query
from intact.rules.discovery import rules_of
from intact.rules.quantized import scaling
from tests.builder import Net
from tests.rules.proof.harness import fired, refused

X = np.zeros((2, 4), np.float32)
BYTES = np.zeros((2, 4), np.uint8)
ZERO = np.uint8(10)


def before(op, constant, scale=0.5, zero=ZERO):
    """Q(op(x, constant))."""
    net = Net()
    net.quantize(net.op(op, "x", np.asarray(constant, np.float32)), scale, zero)
    return net.model({"x": X}, "t1")


def after(op, constant, scale=0.5, zero=ZERO):
    """op(DQ(x), constant)."""
    net = Net()
    net.op(op, net.dequantize("x", scale, zero), np.asarray(constant, np.float32))
    return net.model({"x": BYTES}, "t1")


FIRES = [
    (scaling.FoldScaleIntoQuantize, before("Mul", 3.0), np.float32(0.5 / 3), 10),
    (scaling.FoldScaleIntoQuantize, before("Div", [3.0]), np.float32(1.5), 10),
    (scaling.FoldPowerOfTwoIntoQuantize, before("Mul", [[0.25]]), np.float32(2), 10),
    (scaling.FoldScaleIntoDequantize, after("Mul", 3.0), np.float32(1.5), 10),
    (scaling.FoldPowerOfTwoIntoDequantize, after("Div", 4.0), np.float32(0.125), 10),
    (scaling.FoldShiftIntoDequantize, after("Add", 2.0), np.float32(0.5), 6),
    (scaling.FoldShiftIntoDequantize, after("Sub", 2.0), np.float32(0.5), 14),
    (scaling.FoldShiftIntoQuantize, before("Add", 2.0), np.float32(0.5), 14),
    (scaling.FoldShiftIntoQuantize, before("Sub", 2.0), np.float32(0.5), 6),
]
FACTORS = [
    ("Mul", [1.0, 2.0, 3.0, 4.0], "of shape [4] is not one number"),
    ("Mul", -2.0, "the factor -2 is not positive"),
    ("Mul", 0.0, "the factor 0 is not positive"),
    ("Div", np.nan, "the factor nan is not positive"),
    ("Mul", [[[2.0]]], "has 3 dimensions, the other operand 2"),
]
REFUSES = [
    *((rule, before(op, c), reason) for rule in (scaling.FoldScaleIntoQuantize,) for op, c, reason in FACTORS),
    *((rule, after(op, c), reason) for rule in (scaling.FoldScaleIntoDequantize,) for op, c, reason in FACTORS),
    (scaling.FoldScaleIntoQuantize, before("Mul", 1e-35), "the scale would be 5e+34"),
    (scaling.FoldPowerOfTwoIntoQuantize, before("Mul", 3.0), "3 is not a power of two"),
    (scaling.FoldPowerOfTwoIntoDequantize, after("Mul", 0.3), "0.3 is not a power of two"),
    (scaling.FoldShiftIntoDequantize, after("Add", 0.6), "the constant is -1.2 steps of 0.5, not a whole number"),
    (scaling.FoldShiftIntoDequantize, after("Add", 6.0), "the zero point would be -2, outside of 0 to 255"),
    (scaling.FoldShiftIntoDequantize, after("Add", 0.3, scale=0.1), "float32 rounds the sum differently for"),
    (scaling.FoldShiftIntoQuantize, before("Add", 123.0), "the zero point would be 256, outside of 0 to 255"),
    (scaling.FoldShiftIntoQuantize, before("Sub", 0.7), "not a whole number"),
    (scaling.FoldShiftIntoQuantize, before("Add", [1.0, 1.0, 1.0, 1.0]), "is not one number"),
]


@pytest.mark.parametrize(("rule", "model", "scale", "zero"), FIRES)
def test_a_rule_fires_and_leaves_one_node(rule, model, scale, zero):
    assert len(fired(rule(), model)) == 1
    (node,) = apply(model, [rule()]).model.graph
    assert query.scalar(node.inputs[1]) == scale
    assert query.scalar(node.inputs[2]) == zero


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_the_numbers(rule, model, reason):
    assert reason in refused(rule(), model)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_zero_point_keeps_the_shape_of_the_scale(shape):
    for rule, model in ((scaling.FoldShiftIntoQuantize, before), (scaling.FoldShiftIntoDequantize, after)):
        (node,) = apply(model("Add", 2.0, np.full(shape, 0.5), np.full(shape, ZERO)), [rule()]).model.graph
        assert query.constant(node.inputs[2]).shape == query.constant(node.inputs[1]).shape == shape


def test_the_last_zero_point_of_the_type_is_allowed():
    assert fired(scaling.FoldShiftIntoQuantize(), before("Add", 122.5)) == ["QuantizeLinear"]


def test_a_constant_divided_by_a_tensor_is_not_a_factor():
    net = Net()
    net.quantize(net.op("Div", np.float32(2), "x"), 0.5, ZERO)
    assert not apply(net.model({"x": X}, "t1"), rules_of(scaling)).applications


def test_an_exact_rule_is_preferred():
    done = apply(before("Mul", 2.0), rules_of(scaling))
    assert [item.exactness for item in done.applications] == ["exact"]


def gelu(op, factor, *, with_x):
    """Q(½ · x · (1 + op(x · factor))) of a dequantized x, or of 1 + op(x · factor) alone."""
    net = Net()
    x = net.dequantize("x", 0.5, ZERO)
    grown = net.op("Add", net.op(op, net.op("Mul", x, np.float32(factor))), np.float32(1))
    result = net.op("Mul", net.op("Mul", x, grown) if with_x else grown, np.float32(0.5))
    return net.model({"x": BYTES}, net.quantize(result, 0.5, ZERO))


@pytest.mark.parametrize(
    ("rule", "model"),
    [
        (scaling.FoldScaleIntoDequantize, gelu("Erf", 0.7071068, with_x=True)),
        (scaling.FoldScaleIntoDequantize, gelu("Sigmoid", 1.702, with_x=True)),
        (scaling.FoldScaleIntoQuantize, gelu("Erf", 0.7071068, with_x=True)),
    ],
)
def test_a_gelu_that_onnx_runtime_computes_in_one_node_stays_whole(rule, model):
    assert scaling.GELU in refused(rule(), model)


@pytest.mark.parametrize("op", ["Erf", "Sigmoid"])
def test_a_factor_that_is_no_part_of_a_gelu_is_folded(op):
    fires = {item.rule for item in apply(gelu(op, 3.0, with_x=False), rules_of(scaling)).applications}
    assert fires >= {"fold_scale_into_dequantize", "fold_power_of_two_into_quantize"}
