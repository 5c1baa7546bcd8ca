"""Constants in front of Q become integers, and say why they stay floats."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.model import query
from intact.rules.quantized.constants import QuantizeConstant
from tests.builder import Net
from tests.rules.proof.harness import fired, refused

X = np.zeros(2, np.float32)
WEIGHT = np.float32([0.26, -9.0])
SCALE, ZERO = np.float32(0.5), np.int8(0)


def weight(values=WEIGHT, scale=SCALE, zero=ZERO, returned=False):
    """x + DQ(Q(values)); a text stands for an input of the model."""
    net = Net()
    levels = net.op("QuantizeLinear", values, scale, zero)
    net.op("Add", "x", net.op("DequantizeLinear", levels, scale, zero), _output="y")
    inputs = {"x": X, **({scale: np.float32(0.5)} if isinstance(scale, str) else {})}
    return net.model(inputs, "y", *([levels] if returned else []))


def test_a_weight_becomes_the_integers_that_it_is_rounded_to():
    model = weight()
    assert fired(QuantizeConstant(), model) == ["DequantizeLinear", "Add"]
    done = rewriter.apply(model.clone(), [QuantizeConstant()]).model
    found = query.constant(next(node for node in done.graph if node.op_type == "DequantizeLinear").inputs[0])
    assert found is not None and found.dtype == np.int8 and found.tolist() == [1, -18]


REFUSES = [
    (weight(scale="s"), "scale or zero point is computed, not constant"),
    (weight(scale=np.float32(0)), "a scale is not a positive number"),
    (weight(values=np.float32([1, np.nan])), "the constant is not finite numbers of float32"),
    (weight(values=WEIGHT.astype(np.float16), scale=np.float16(0.5)), "the constant is not finite numbers of float32"),
    (weight(returned=True), "the model returns the integers, and an output is no constant"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSES)
def test_a_constant_stays_and_says_why(model, reason):
    assert reason in refused(QuantizeConstant(), model)
