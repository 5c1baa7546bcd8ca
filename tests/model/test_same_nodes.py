"""Models that are the same function by definition."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, same_nodes, upgrade
from tests.builder import from_text

W = np.eye(4, dtype=np.float32)
PORTS = "(float[2,4] x) => (float[2,4] y)"


def model(text="a = MatMul(x, w) b = Relu(a) y = Identity(b)", opset=17):
    made = from_text(PORTS, text, weights={"w": W})
    made.opset_imports[""] = opset
    return made


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a = MatMul(x, w) b = Relu(a) y = Identity(b)", True),
        # Newer versions take further types.
        ("a = MatMul(x, w) b = IsNaN(a) y = Cast<to = 1>(b)", True),
        # From opset 18 on axes are an input.
        ("a = ReduceMean<axes = [1], keepdims = 1>(x) y = Add(x, a)", False),
    ],
)
def test_an_upgrade_that_changes_no_node_is_known_to_change_nothing(text, same):
    given = model(text)
    assert same_nodes.are_same(given, normalize.normalize(upgrade.upgrade(given).model)) is same


def _another_operator(made):
    made.graph[1].op_type = "Neg"


def _another_input(made):
    made.graph[1].replace_input_with(0, made.graph.inputs[0])


def _another_constant(made):
    value = made.graph.initializers["w"]
    value.const_value = ir.Tensor(2 * value.const_value.numpy(), name="w")


def _another_output(made):
    made.graph.outputs[:] = [made.graph[1].outputs[0]]


@pytest.mark.parametrize("change", [_another_operator, _another_input, _another_constant, _another_output])
def test_whatever_differs_counts(change):
    one = model()
    other = one.clone()
    assert same_nodes.are_same(one, other)
    change(other)
    assert not same_nodes.are_same(one, other)


def test_a_version_that_means_something_else_counts():
    one = model("y = Softmax(x)", 13)
    for opset, same in ((12, False), (21, True)):
        other = one.clone()
        other.opset_imports[""] = opset
        assert same_nodes.are_same(one, other) is same
