"""Edits keep names unique, outputs named, and bodies consistent."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.runtime import ort_cpu
from tests.model.small import model, ops

FEEDS = {"x": np.float32([-1, 0, 1, 2])}


def node(op_type: str, *inputs: ir.Value, name: str) -> ir.Node:
    made = ir.Node("", op_type, inputs, name=name)
    made.outputs[0].name = f"{name}_out"
    return made


def test_names_are_free_and_the_same_every_time():
    for _ in range(2):
        names = edit.Names(model("a = Relu(x)\n y = Neg(a)"))
        assert [names.take(wanted) for wanted in ("a", "a", "b", "x")] == ["a_1", "a_2", "b", "x_1"]


def test_inserting_after_a_value_reroutes_all_its_uses():
    result = model("a = Relu(x)\n y = Neg(a)\n v = Abs(a)", "(float[4] x) => (float[4] y, float[4] v)")
    value = result.graph[0].outputs[0]
    edit.insert_after(value, node("Neg", value, name="n"), edit.Names(result))
    assert ops(result) == ["Relu", "Neg", "Neg", "Abs"]
    assert np.array_equal(ort_cpu.run(result, FEEDS)["y"], [0, 0, 1, 2])


def test_inserting_after_a_graph_output_keeps_its_name():
    result = model("y = Relu(x)")
    value = result.graph.outputs[0]
    edit.insert_after(value, node("Neg", value, name="n"), edit.Names(result))
    assert [output.name for output in result.graph.outputs] == ["y"]
    assert np.array_equal(ort_cpu.run(result, FEEDS)["y"], [0, 0, -1, -2])


def test_inserting_after_a_graph_input_goes_first():
    result = model("a = Relu(x)\n y = Neg(a)")
    edit.insert_after(result.graph.inputs[0], node("Abs", result.graph.inputs[0], name="n"), edit.Names(result))
    assert ops(result) == ["Abs", "Relu", "Neg"]


def test_inserting_before_one_input_leaves_other_uses():
    result = model("a = Relu(x)\n b = Abs(x)\n y = Add(a, b)")
    x, absolute = result.graph.inputs[0], result.graph[1]
    edit.insert_before(absolute, 0, node("Neg", x, name="n"))
    assert [user.name for user in query.consumers(x)] == ["a", "n"]


def test_removing_a_dead_node_removes_what_only_it_used():
    result = model("a = Relu(x)\n b = Mul(a, c)\n y = Neg(x)", constants="float c = {2}")
    edit.remove_dead([result.graph[1]])
    assert ops(result) == ["Neg"]
    assert not result.graph.initializers
    assert [user.name for user in query.consumers(result.graph.inputs[0])] == ["y"]


def test_what_stays_and_loses_a_use_is_told_at_once():
    result = model("a = Relu(x)\n d = Abs(a)\n b = Mul(d, c)\n y = Neg(a)", constants="float c = {2}")
    relu, dead, remains = result.graph[0], result.graph[2], edit.Remains()
    assert [value.name for value in remains.release([dead])] == ["a"]
    assert [user.name for user in query.consumers(relu.outputs[0])] == ["y"]
    assert ops(result) == ["Relu", "Abs", "Mul", "Neg"]
    remains.take_out()
    assert ops(result) == ["Relu", "Neg"]
    assert not result.graph.initializers


def test_a_node_that_is_used_by_another_one_still_stays():
    result = model("a = Relu(x)\n b = Neg(a)\n y = Abs(a)")
    remains = edit.Remains()
    assert [value.name for value in remains.release([result.graph[0], result.graph[1]])] == ["a"]
    remains.take_out()
    assert ops(result) == ["Relu", "Abs"]


def test_removing_an_if_ends_the_uses_in_its_bodies():
    body = """
        a = Relu(x)
        b = If (c) < then_branch = g1 () => (float[4] p) { p = Neg(a) },
                     else_branch = g2 () => (float[4] q) { q = Abs(a) } >
        y = Neg(x)"""
    result = model(body, "(float[4] x, bool c) => (float[4] y)")
    edit.prune(result)
    assert ops(result) == ["Neg"]


def body_that_adds(amount: float) -> ir.Graph:
    """A graph that returns its input as it is, and with a constant added to it."""
    source = ir.val("in", ir.DataType.FLOAT, [4])
    constant = ir.val("amount", const_value=ir.tensor(np.full(4, amount, np.float32), name="amount"))
    added = node("Add", source, constant, name="add")
    return ir.Graph([source], [source, added.outputs[0]], nodes=[added], initializers=[constant], name="body")


def test_bodies_moved_in_front_of_a_node_read_what_they_are_given_and_keep_apart():
    result = model("y = Relu(x)")
    relu, given, names = result.graph[0], result.graph.inputs[0], edit.Names(result)
    for number, amount in enumerate((1.0, 10.0)):
        same, added = edit.splice(body_that_adds(amount), relu, [given], names, f"{{}}/{number}".format)
        assert same is given
        given = added
    relu.replace_input_with(0, given)
    assert [inner.name for inner in result.graph][:2] == ["add/0", "add/1"]
    assert set(result.graph.initializers) == {"amount/0", "amount/1"}
    assert np.array_equal(ort_cpu.run(result, FEEDS)["y"], [10, 11, 12, 13])
