"""Zero points leave the middle of int8, and say why they do not."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.rules.quantized.off_middle import MoveGridOffMiddle, MoveWeightOffMiddle
from tests.builder import Net
from tests.rules.proof.harness import refused

LEVELS, ZERO = np.int8([[-128, -127, 0, 127]]), np.int8(0)


def weight(levels=LEVELS, scale=0.5, zero=ZERO):
    net = Net()
    net.op("Mul", "x", net.dequantize(levels, scale, zero), _output="y")
    return net.model({"x": np.zeros((1, 4), np.float32)}, "y")


def activation(zero=ZERO):
    net = Net()
    net.op("Relu", net.qdq("x", 0.5, zero), _output="y")
    return net.model({"x": np.zeros((1, 4), np.float32)}, "y")


def test_a_weight_moves_by_one_and_only_the_least_integer_changes_its_value():
    done = rewriter.apply(weight(), [MoveWeightOffMiddle()]).model
    levels, _, zero = next(node for node in done.graph if node.op_type == "DequantizeLinear").inputs
    assert levels.const_value.numpy().tolist() == [[-128, -128, -1, 126]] and zero.const_value.numpy() == -1


def test_quantizer_and_dequantizer_of_an_activation_move_together():
    done = rewriter.apply(activation(), [MoveGridOffMiddle()]).model
    zeros = [node.inputs[2].const_value.numpy().item() for node in done.graph if node.op_type != "Relu"]
    assert zeros == [-1, -1]


@pytest.mark.parametrize(
    ("rule", "model", "reason"),
    [
        (MoveWeightOffMiddle(), weight(zero=np.int8(3)), "its zero point is not in the middle"),
        (MoveWeightOffMiddle(), weight(LEVELS.view(np.uint8), zero=np.uint8(128)), "it is uint8, not int8"),
        (MoveWeightOffMiddle(), weight(LEVELS[0]), "it is no weight"),
        (MoveGridOffMiddle(), activation(np.int8(-4)), "its zero point is not in the middle"),
        (MoveGridOffMiddle(), activation(np.uint8(128)), "it is uint8, not int8"),
    ],
)
def test_a_grid_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule, model)
