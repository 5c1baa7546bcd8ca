"""Nodes that rules build: copies of others with some things changed, and nodes of several outputs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from intact.matching.builder import Builder
from intact.model import query
from tests.model.small import model

POOL = "(float[1,2,6,6] x) => (float[1,2,3,3] y)"
BODY = "y = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)"


@pytest.fixture
def pool() -> tuple[Builder, ir.Node]:
    built = model(BODY, POOL)
    (node,) = built.graph
    op = Builder(built)
    op.start(node, (node,))
    return op, node


def test_a_node_like_another_has_its_type_and_attributes_but_for_those_changed_and_dropped(pool):
    op, node = pool
    made = op.like(node, node.inputs[0], _dropped=("ceil_mode",), strides=[3, 3]).producer()
    assert (made.op_type, made.domain, list(made.inputs)) == ("AveragePool", "", list(node.inputs))
    assert {name: item.value for name, item in made.attributes.items()} == {"kernel_shape": (2, 2), "strides": (3, 3)}
    assert query.ints(node, "strides") == (2, 2) and "ceil_mode" in node.attributes


def test_a_node_like_one_of_several_outputs_has_one_unless_all_are_asked_for(pool):
    op, node = pool
    parts = op.outputs("Split", 3, node.inputs[0], num_outputs=3)
    split = parts[0].producer()
    assert [value.producer() for value in parts] == [split] * 3
    assert len(op.outputs_like(split, node.inputs[0])) == 3
    assert len(op.like(split, node.inputs[0]).producer().outputs) == 1
