"""Pad and Split: where they move integers, and why they do not."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.matching.explanation import explain
from intact.rules.quantized import padding
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.builder import Net
from tests.rules.proof.harness import fired, refused
from tests.rules.quantized.cases.padding import PADS, PARTS, SHAPE

X, BYTES = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.uint8)
GRID = (0.5, np.uint8(3))
CPU = load_target("cpu").rewrite


def padded(second=GRID, value=0.0, dtype=np.uint8):
    """Q(Pad(DQ(x), value)); a text stands for an input of the model."""
    net = Net()
    real = net.dequantize("x", 0.5, dtype(3))
    net.quantize(net.op("Pad", real, PADS, value if isinstance(value, str) else np.float32(value)), *second)
    inputs = {"x": BYTES.astype(dtype), **({value: np.float32(0)} if isinstance(value, str) else {})}
    return net.model(inputs, "t2")


def before(x="x"):
    """Q(Pad(x))."""
    net = Net()
    net.quantize(net.op("Pad", x, PADS), *GRID)
    return net.model({"x": X}, "t1")


def split(count, grid=GRID, **attributes):
    net = Net()
    parts = net.split(net.dequantize("x", *grid, **attributes), [1] * count, axis=1)
    return net.model({"x": np.zeros((2, count), grid[1].dtype)}, *(net.op("Identity", part) for part in parts))


FIRES = [
    (padding.PadIntegers(), padded(), ["Pad"]),
    (padding.QuantizeBeforePad(), before(), ["QuantizeLinear", "Pad"]),
]
FIRES += [
    (padding.SplitIntegers(), split(count), ["Split", *["DequantizeLinear"] * count, *["Identity"] * count])
    for count in PARTS
]
PER_CHANNEL = (np.float32([0.5, 0.25]), np.uint8([3, 4]))
REFUSES = [
    (padding.PadIntegers(), padded((0.25, np.uint8(3))), "the scales differ (0.5 and 0.25)"),
    (padding.PadIntegers(), padded(value="v"), "the value that it pads with is computed, not constant"),
    (
        padding.PadIntegers().for_target(CPU),
        padded((0.5, np.uint16(3)), dtype=np.uint16),
        "the target has no Pad of uint16",
    ),
    (padding.QuantizeBeforePad(), before(X), "is constant"),
    (padding.SplitIntegers(), split(2, PER_CHANNEL, axis=1), "input has 2 numbers, not one constant scale"),
]
REFUSES += [
    (padding.SplitIntegers().for_target(CPU), split(count, (0.5, np.int16(3))), "the target has no Split of int16")
    for count in PARTS
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES)
def test_a_rule_fires(rule, model, left):
    assert fired(rule, model) == left


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_a_reason(rule, model, reason):
    assert reason in refused(rule, model)


def test_parts_that_are_outputs_of_the_model_or_go_unused_are_converted_too():
    net = Net()
    first, second, _ = net.split(net.dequantize("x", *GRID), [1, 2, 1], axis=1)
    model = net.model({"x": np.zeros((2, 4), np.uint8)}, first, net.op("Relu", second))
    done = rewriter.apply(model.clone(), [padding.SplitIntegers()])
    assert [item.rule for item in done.applications] == ["split_integers"]
    x = np.arange(8).reshape(2, 4).astype(np.uint8)
    before, after = ort_cpu.run(model, {"x": x}), ort_cpu.run(done.model, {"x": x})
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("node", ["first", "move"])
def test_explain_says_why_a_split_of_floats_stays(node):
    model = split(5, (0.5, np.int16(3)))
    names = {"first": "DequantizeLinear", "move": "Split"}
    (name,) = (item.name for item in model.graph if item.op_type == names[node])
    found = explain(model, [padding.SplitIntegers().for_target(CPU)], name)
    assert [item.reason for item in found] == ["the target has no Split of int16"]


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_a_pad_that_repeats_what_is_there_has_no_value_of_its_own(mode):
    """A value that goes unused may be given; it is a float and would not fit integers."""
    net = Net()
    real = net.dequantize("x", *GRID)
    net.quantize(net.op("Pad", real, PADS, np.float32(7), mode=mode), *GRID)
    model, x = net.model({"x": BYTES}, "t2"), np.arange(BYTES.size).reshape(SHAPE).astype(np.uint8)
    done = rewriter.apply(model.clone(), [padding.PadIntegers()])
    assert [item.rule for item in done.applications] == ["pad_integers"]
    assert np.array_equal(ort_cpu.run(model, {"x": x})["t2"], ort_cpu.run(done.model, {"x": x})["t2"])
