"""A grid in front of a Relu or Clip: only where a product of integers lacks one."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.rules.discovery import rules_of
from intact.rules.quantized import split_clips
from tests.builder import Net

RULES = rules_of(split_clips)
W = np.ones((2, 2), np.int8)


def rewritten(build):
    net = Net()
    outputs = build(net)
    return rewriter.apply(net.model({"x": np.zeros((3, 2), np.uint8)}, *outputs), RULES)


def ops(result):
    return [node.op_type for node in result.model.graph]


def product(net):
    return net.op("MatMul", net.dequantize("x", 0.1, np.uint8(128)), net.dequantize(W, 0.1, np.int8(0)))


def test_a_product_in_front_of_a_relu_gets_the_grid_behind_it():
    result = rewritten(lambda net: [net.quantize(net.op("Relu", product(net)), 0.5, np.uint8(128))])
    assert ops(result)[-5:] == ["MatMul", "QuantizeLinear", "DequantizeLinear", "Relu", "QuantizeLinear"]
    assert [application.exactness for application in result.applications] == ["exact"]
    assert rewriter.apply(result.model, RULES).applications == ()


def test_a_product_of_which_only_one_operand_is_quantized_is_one_too():
    """A float bias, or a float weight, does not keep it from computing with integers elsewhere."""
    result = rewritten(
        lambda net: [
            net.quantize(
                net.op("Relu", net.op("MatMul", net.dequantize("x", 0.1, np.uint8(128)), W.astype(np.float32))),
                0.5,
                np.uint8(128),
            )
        ]
    )
    assert [application.rule for application in result.applications] == ["split_relu"]


REFUSES = {
    "is no result of a computation": lambda net: [
        net.quantize(net.op("Relu", net.dequantize("x", 0.1, np.uint8(128))), 0.5, np.uint8(128))
    ],
    "reads nothing that is quantized": lambda net: [
        net.quantize(net.op("Relu", net.op("Cast", "x", to=1)), 0.5, np.uint8(128))
    ],
    "differs by channel": lambda net: [
        net.quantize(net.op("Relu", product(net)), [0.5, 0.25], np.full(2, 128, np.uint8), axis=1)
    ],
    "has other readers": lambda net: [
        net.quantize(net.op("Relu", p := product(net)), 0.5, np.uint8(128)),
        net.op("Abs", p),
    ],
}


@pytest.mark.parametrize("reason", REFUSES)
def test_it_refuses_otherwise_and_says_why(reason):
    result = rewritten(REFUSES[reason])
    assert result.applications == ()
    assert any(reason in refusal.reason for refusal in result.refusals)
