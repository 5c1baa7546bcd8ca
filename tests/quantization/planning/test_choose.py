"""Nodes that a target takes at a type: by what stands in each of their inputs, and by their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from intact.quantization.planning.choose import choose
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model

F = np.float32
W, V = np.ones((4, 4), F), np.ones((4, 4), F)


def chosen(body, device="qnn", inputs="float[4,4] x", types=None, **weights):
    """The nodes that are quantized, with the types of their activations."""
    graph = model(inputs, "float[4,4] y", body, w=W, v=V, **weights)
    found = choose(graph, load_target(device), QuantConfig(), types or {})
    return {choice.node.name: choice.activation for choice in found}


EVERY = ["c", "m", "y"]
BETWEEN = {
    "rows by their numbers": ("m = Gather(c, i)", {"i": np.arange(4)}),
    "a choice by a condition": ("m = Where(k, c, c)", {"k": np.eye(4, dtype=bool)}),
    "a shape": ("m = Reshape(c, s)", {"s": np.array([4, 4])}),
    "a constant operand": ("m = Mul(c, u)", {"u": F([[1, 2, 3, 4]])}),
    "two computed operands": ("m = MatMul(c, c)", {}),
}


@pytest.mark.parametrize(("middle", "weights"), BETWEEN.values(), ids=BETWEEN)
def test_a_node_with_every_input_of_a_kind_that_the_target_takes_is_chosen(middle, weights):
    assert list(chosen(f"c = MatMul(x, w)  {middle}  y = MatMul(m, v)", **weights)) == EVERY


NOT = {
    "floats that are not real numbers": (
        "k = Cast<to=9>(x)  c = MatMul(x, w)  m = Where(k, c, c)  y = MatMul(m, v)",
        EVERY,
    ),
    "integers in the place of numbers": (
        "j = Cast<to=7>(x)  n = Mul(j, j)  m = Cast<to=1>(n)  y = MatMul(m, v)",
        ["y"],
    ),
}


@pytest.mark.parametrize(("body", "nodes"), NOT.values(), ids=NOT)
def test_what_is_no_number_stands_only_where_the_target_takes_it(body, nodes):
    assert list(chosen(body)) == nodes


@pytest.mark.parametrize(("bias", "nodes"), [("b", ["y"]), ("z", [])])
def test_a_constant_stands_where_the_target_wants_one_and_a_computed_bias_does_not(bias, nodes):
    body = f"z = Relu(h)  y = Gemm(x, w, {bias})"
    found = chosen(body, "cpu", "float[4,4] x, float[4] h", b=np.ones(4, F))
    assert list(found) == nodes


def test_a_node_that_is_not_worth_it_is_chosen_only_behind_one_that_is():
    body = "r = LeakyRelu(x)  c = Conv(r, k)  s = LeakyRelu(c)  y = Conv(s, k)"
    graph = model("float[1,4,2,2] x", "float[1,4,2,2] y", body, k=W.reshape(4, 4, 1, 1))
    found = choose(graph, load_target("cpu"), QuantConfig(), {})
    assert [choice.node.name for choice in found] == ["c", "s", "y"]


def test_a_node_that_is_to_stay_in_float_is_not_chosen():
    body = "c = MatMul(x, w)  y = MatMul(c, v)"
    assert chosen(body) == {"c": "uint8", "y": "uint8"}
    assert chosen(body, types={"c": "float", "y": "uint16"}) == {"y": "uint16"}


def test_a_node_that_nobody_quantized_reads_is_chosen_only_if_it_is_asked_for_by_name():
    """Its rounding would serve nobody."""
    graph = model("float[1,4,2,2] x", "float[1,4,2,2] y", "c = Conv(x, k)  y = LeakyRelu(c)", k=W.reshape(4, 4, 1, 1))
    for names, nodes in ((None, ["c"]), (("c", "y"), ["c", "y"])):
        found = choose(graph, load_target("cpu"), QuantConfig(nodes=names), {})
        assert [choice.node.name for choice in found] == nodes


@pytest.mark.parametrize("weight_type", ["uint8", "int8", "int16", "int4"])
def test_of_two_signatures_the_one_with_the_wanted_type_of_weights_is_chosen(weight_type):
    config = QuantConfig(activation_type="uint16", weight_type=weight_type)
    graph = model("float[1,4,4,4] x", "float[1,4,4,4] y", "y = Conv(x, w)", w=np.ones((4, 4, 1, 1), F))
    (choice,) = choose(graph, load_target("qnn"), config, {})
    assert weight_type in choice.signature.input(1).types


COUNTED = "t = Mul(a, a)  n = Cast<to=7>(t)  c = MatMul(x, w)  y = Tile(c, n)"


def test_what_decides_a_count_or_a_shape_stays_exact_unless_it_is_named():
    inputs = "float[4,4] x, float[2] a"
    assert "t" not in chosen(COUNTED, inputs=inputs) and "c" in chosen(COUNTED, inputs=inputs)
    assert "t" in chosen(COUNTED, inputs=inputs, types={"t": "uint8"})
