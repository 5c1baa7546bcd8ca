"""Pad and Split of integers, and rows of integers: where they get grids around them, and why they do not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from intact.rules.quantized import moves_to_qdq
from tests.builder import Net
from tests.rules.proof.harness import Case, every_level, fired, prove, refused
from tests.rules.quantized.cases.padding import PADS, PARTS, SHAPE

X = np.zeros(SHAPE, np.float32)
GRID = (0.5, np.uint8(3))
PER_CHANNEL = (np.float32([0.5, 0.25]), np.uint8([3, 4]))
LOST = (1e-40, np.uint8(3))


def padded(level=None, grid=GRID, **attributes):
    """Pad(Q(x), level); a text stands for an input of the model."""
    net = Net()
    net.op("Pad", net.quantize("x", *grid, **attributes), PADS, level, _output="y")
    return net.model({"x": X, **({level: np.uint8(0)} if isinstance(level, str) else {})}, "y")


def split(count, grid=GRID, **attributes):
    net = Net()
    parts = net.split(net.quantize("x", *grid, **attributes), [1] * count, axis=1)
    return net.model({"x": np.zeros((2, count), np.float32)}, *parts)


def pooled():
    """MaxPool(Q(x)) with a second output, which nothing reads."""
    net = Net()
    levels = net.quantize("x", *GRID)
    net.nodes.append(helper.make_node("MaxPool", [levels], ["y", "places"], name="pool", kernel_shape=[2]))
    return net.model({"x": np.zeros((1, 2, 4), np.float32)}, "y")


def looked_up(grid=GRID, **attributes):
    net = Net()
    rows = net.op("Gather", np.zeros((4, 2), grid[1].dtype), "ids")
    net.op("Relu", net.dequantize(rows, *grid, **attributes), _output="y")
    return net.model({"ids": np.zeros(3, np.int64)}, "y")


Q, DQ = "QuantizeLinear", "DequantizeLinear"
FIRES = [
    (moves_to_qdq.PadToQdq(), padded(np.uint8(7)), [Q, DQ, "Pad", Q]),
    *((moves_to_qdq.SplitToQdq(), split(count), [Q, DQ, "Split", *[Q] * count]) for count in PARTS),
    (moves_to_qdq.MoveConstantToQdq(), looked_up(), [DQ, "Gather", Q, DQ, "Relu"]),
]
REFUSES = [
    (moves_to_qdq.MoveToQdq(), pooled(), "MaxPool has 2 outputs"),
    (moves_to_qdq.PadToQdq(), padded("v"), "the level that it pads with is computed, not constant"),
    (moves_to_qdq.PadToQdq(), padded(grid=PER_CHANNEL, axis=1), "input has 2 numbers, not one constant scale"),
    (moves_to_qdq.SplitToQdq(), split(2, PER_CHANNEL, axis=1), "input has 2 numbers, not one constant scale"),
    *((moves_to_qdq.SplitToQdq(), split(count, LOST), "the scale 9.99995e-41 is not between") for count in PARTS),
    (
        moves_to_qdq.MoveConstantToQdq(),
        looked_up(PER_CHANNEL, axis=1),
        "constant has 2 numbers, not one constant scale",
    ),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES)
def test_a_rule_fires(rule, model, left):
    assert fired(rule, model) == left


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_a_reason(rule, model, reason):
    assert reason in refused(rule, model)


@pytest.mark.parametrize(("mode", "level"), [("constant", None), ("constant", np.uint8(7)), ("reflect", None)])
def test_integers_are_padded_with_the_level_that_was_given_or_with_their_own(mode, level):
    net = Net()
    net.op("Pad", net.quantize("x", *GRID), np.int64([0, 2, 0, 1]), level, _output="y", mode=mode)
    x = every_level(np.uint8, (2, 128)).astype(np.float32) / 2
    assert prove(moves_to_qdq.PadToQdq(), Case(mode, net.model({"x": x}, "y"), [{"x": x}])) > 0
