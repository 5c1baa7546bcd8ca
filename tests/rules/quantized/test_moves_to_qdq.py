"""Pad and Split of integers, and rows of integers: where they get grids around them, and why they do not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from intact.matching import rewriter
from intact.model import query
from intact.rules.discovery import rules_of
from intact.rules.quantized import moves_to_qdq
from tests.builder import Net
from tests.rules.proof.harness import Case, every_level, fired, prove, refused
from tests.rules.proof.interpreter import evaluate
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


TWICE = np.float32([1, 2])


def moved(op, *rest, grid=GRID, **attributes):
    net = Net()
    net.op(op, net.quantize("x", *grid), *rest, _output="y", **attributes)
    return net.model({"x": np.zeros((2, 4), np.float32)}, "y")


def joined(second=GRID):
    net = Net()
    net.op("Concat", net.quantize("x", *GRID), net.quantize("z", *second), axis=1, _output="y")
    return net.model({"x": np.zeros((2, 4), np.float32), "z": np.zeros((2, 3), np.float32)}, "y")


Q, DQ = "QuantizeLinear", "DequantizeLinear"
FIRES = [
    (moves_to_qdq.PadToQdq(), padded(np.uint8(7)), [Q, DQ, "Pad", Q]),
    *((moves_to_qdq.SplitToQdq(), split(count), [Q, DQ, "Split", *[Q] * count]) for count in PARTS),
    (moves_to_qdq.MoveConstantToQdq(), looked_up(), [DQ, "Gather", Q, DQ, "Relu"]),
    (moves_to_qdq.MoveToQdq(), moved("Transpose"), [Q, DQ, "Transpose", Q]),
    (moves_to_qdq.InterpolateToQdq(), moved("Resize", None, TWICE, mode="linear"), [Q, DQ, "Resize", Q]),
    (moves_to_qdq.ClipToQdq(), moved("Clip", np.uint8(5), np.uint8(90)), ["Clip", Q]),
    (moves_to_qdq.ConcatIntegersToQdq(), joined(), [Q, Q, DQ, DQ, "Concat", Q]),
]
REFUSES = [
    (moves_to_qdq.MoveToQdq(), pooled(), "MaxPool has 2 outputs"),
    (moves_to_qdq.InterpolateToQdq(), moved("Resize", None, TWICE, mode="cubic"), "between two integers"),
    (moves_to_qdq.ClipToQdq(), moved("Clip", np.uint8(5), grid=LOST), "the scale 9.99995e-41 is not between"),
    (moves_to_qdq.ConcatIntegersToQdq(), joined((0.25, np.uint8(3))), "the scales differ"),
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
    assert sorted(fired(rule, model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_a_reason(rule, model, reason):
    assert reason in refused(rule, model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    rules = {type(rule) for rule in rules_of(moves_to_qdq)}
    assert rules == {type(row[0]) for row in FIRES} == {type(row[0]) for row in REFUSES}


def test_parts_that_are_joined_keep_their_order_and_their_levels():
    """The integers of np.concatenate, of the grid and the shape that the result had."""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(0, 50, (2, 4)).astype(np.float32), "z": rng.normal(0, 50, (2, 3)).astype(np.float32)}
    done = rewriter.apply(joined(), [moves_to_qdq.ConcatIntegersToQdq()]).model
    (y,) = done.graph.outputs
    assert y.dtype.name == "UINT8" and query.static_shape(y.producer().inputs[0]) == (2, 7)
    levels = np.rint(np.concatenate([feeds["x"], feeds["z"]], axis=1) / 0.5) + 3
    assert np.array_equal(evaluate(done, feeds)["y"], np.clip(levels, 0, 255))


def test_only_the_axes_that_a_pad_names_are_padded():
    net, x = Net(), np.float32([[1, 2, 3], [4, 5, 6]])
    net.op("Pad", net.quantize("x", *GRID), np.int64([2, 1]), np.uint8(7), np.int64([1]), _output="y")
    done = rewriter.apply(net.model({"x": x}, "y"), [moves_to_qdq.PadToQdq()])
    assert done.applications
    assert np.array_equal(evaluate(done.model, {"x": x})["y"], np.pad(2 * x + 3, ((0, 0), (2, 1)), constant_values=7))


@pytest.mark.parametrize(("mode", "level"), [("constant", None), ("constant", np.uint8(7)), ("reflect", None)])
def test_integers_are_padded_with_the_level_that_was_given_or_with_their_own(mode, level):
    net = Net()
    net.op("Pad", net.quantize("x", *GRID), np.int64([0, 2, 0, 1]), level, _output="y", mode=mode)
    x = every_level(np.uint8, (2, 128)).astype(np.float32) / 2
    assert prove(moves_to_qdq.PadToQdq(), Case(mode, net.model({"x": x}, "y"), [{"x": x}])) > 0
