"""Readers answer for constants of every kind and treat graph outputs as uses."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import query
from tests.model.small import model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Constant <value = float[2] {1, 2}> ()", [1.0, 2.0]),
        ("Constant <value_float = 0.5> ()", 0.5),
        ("Constant <value_ints = [3, 4]> ()", [3, 4]),
    ],
)
def test_the_value_of_a_constant_node(text, expected):
    value = model(f"c = {text}\n y = Identity(x)").graph[0].outputs[0]
    assert query.constant(value).tolist() == expected


@pytest.mark.parametrize(
    ("declared", "expected"), [("float c = {2}", 2.0), ("float[1,1] c = {2}", 2.0), ("float[2] c = {2, 2}", None)]
)
def test_one_element_of_any_rank_is_a_scalar(declared, expected):
    value = model("y = Mul(x, c)", constants=declared).graph[0].inputs[1]
    assert query.scalar(value) == expected
    assert query.is_scalar(value) is (expected is not None)


def test_what_an_input_can_override_is_no_constant():
    graph = model("y = Mul(x, c)", "(float[4] x, float c) => (float[4] y)", "float c = {2}").graph
    assert query.constant(graph[0].inputs[1]) is None
    assert query.constant(graph.inputs[0]) is None


def test_a_graph_output_is_a_use():
    graph = model("v = Relu(x)\n y = Neg(v)", "(float[4] x) => (float[4] y, float[4] v)").graph
    assert query.only_consumer(graph[0].outputs[0]) is None
    assert query.only_consumer(graph.inputs[0]) is graph[0]
    assert not any(query.is_unused(node.outputs[0]) for node in graph)


def test_attributes_have_defaults():
    node = model("y = LeakyRelu <alpha = 0.25> (x)").graph[0]
    assert query.float_(node, "alpha", 0.01) == 0.25
    assert query.int_(node, "axis", 7) == 7
    assert query.ints(node, "pads", (0, 0)) == (0, 0)
    assert query.string(node, "mode", "constant") == "constant"


def test_shapes_are_static_or_unknown():
    graph = model("y = Relu(x)", "(float[N, 4] x) => (float[N, 4] y)").graph
    assert query.static_shape(graph.inputs[0]) is None
    assert query.rank(graph.inputs[0]) == 2
    assert query.static_shape(model("y = Relu(x)").graph.inputs[0]) == (4,)
    assert query.same_shape(graph.inputs[0], graph.outputs[0])


def test_eight_bits_are_a_grid_and_64_an_index():
    graph = model("y = Relu(x)", "(float[4] x, uint8[4] q, int64[4] i) => (float[4] y)").graph
    assert [query.is_float(value) for value in graph.inputs] == [True, False, False]
    assert [query.is_quantized(value) for value in graph.inputs] == [False, True, False]


def test_equal_constants_share_type_and_elements():
    constants = "float a = {2}, float[1] b = {2}, double c = {2}, float[2] d = {2, 2}, float[2,1] e = {2, 2}"
    model_ = model("y = Sum(a, b, d)", constants=constants)
    values = model_.graph.initializers
    pairs = {("a", "b"): True, ("a", "c"): False, ("a", "d"): False, ("d", "e"): False, ("d", "d"): True}
    for (left, right), equal in pairs.items():
        assert query.same_constant(values[left], values[right]) is equal, (left, right)
    assert np.array_equal(query.constant(values["d"]), [2, 2])
