"""Copies that share what nobody changes."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from bench.big_graphs import GRAPHS
from intact.model import io
from intact.model.copying import copied

TEXT = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1], producer_name: "someone", doc_string: "a model">
named (float[1, "n"] x, float[4] d = {1, 2, 3, 4}) => (float[1, "n"] y, float z)
<float[1] w = {2.0}, float z = {3.0}, float[1, "n"] h>
{
    [doubled] h = Mul (x, w)
    y = Clip (h, , w)
}
"""
BODY = """
<ir_version: 10, opset_import: ["" : 21]>
g (bool c, float[2] x) => (float[2] y) { y = If (c) <
    then_branch = a () => (float[2] p) { p = Neg (x) }, else_branch = b () => (float[2] q) { q = Abs (x) }> }
"""


def parsed(text: str) -> ir.Model:
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.graph.metadata_props["of"] = "the graph"
    node = next(iter(model.graph))
    node.metadata_props["of"], node.doc_string, node.outputs[0].metadata_props["of"] = "a node", "said", "a value"
    return model


@pytest.mark.parametrize("model", [parsed(TEXT), parsed(BODY), ir.from_proto(GRAPHS["residual"](60))])
def test_a_copy_is_written_as_the_model_is(model):
    assert io.to_bytes(copied(model)) == io.to_bytes(model) == io.to_bytes(model.clone())


def test_what_is_done_to_a_copy_does_not_show_in_the_model():
    model = parsed(TEXT)
    before, copy = io.to_bytes(model), copied(model)
    node, value = next(iter(copy.graph)), copy.graph.initializers["w"]
    node.attributes.add(ir.AttrInt64("axis", 1))
    node.metadata_props["of"] = node.outputs[0].metadata_props["of"] = copy.graph.metadata_props["of"] = "another"
    node.replace_input_with(0, value)
    value.name, value.shape = "renamed", ir.Shape([7])
    value.const_value = ir.tensor([1.0], name="other")
    copy.graph.opset_imports[""] = 22
    copy.graph.remove(list(copy.graph)[1])
    model.graph.initializers["w"].const_value.name = "w"  # as with `clone`, a tensor is shared, and has the last name
    assert io.to_bytes(model) == before


@pytest.mark.parametrize("sizes", [[1, "n"], [1, 4]])
def test_shared_shapes_cannot_be_changed_in_place(sizes):
    model = parsed(TEXT)
    model.graph.inputs[0].shape = ir.Shape(sizes)
    copy = copied(model)
    assert copy.graph.inputs[0].shape is copied(copy).graph.inputs[0].shape == sizes
    with pytest.raises(TypeError, match="frozen"):
        copy.graph.inputs[0].shape[1] = 3


def test_fixed_shapes_of_the_same_sizes_are_one():
    first, second = (copied(parsed(TEXT)).graph for _ in range(2))
    assert first.inputs[1].shape is second.inputs[1].shape == [4]
    assert first.inputs[0].shape is not second.inputs[0].shape


def test_notes_of_stages_are_copied():
    model = parsed(TEXT)
    model.graph.inputs[0].meta["seen"] = model.graph.inputs[0].shape
    copy = copied(model)
    assert copy.graph.inputs[0].meta["seen"] is model.graph.inputs[0].shape
    copy.graph.inputs[0].meta["seen"] = None
    assert model.graph.inputs[0].meta["seen"] is not None


def test_nothing_is_left_at_nodes_and_values_of_which_nothing_is_noted():
    model = ir.from_proto(GRAPHS["layers"](60))
    copy = copied(model)
    assert io.to_bytes(copy) == io.to_bytes(model)
    nodes = [node for one in (model, copy) for node in one.graph]
    items = [*nodes, *(value for node in nodes for value in node.outputs if not value.is_graph_output())]
    constants = [value for one in (model, copy) for value in one.graph.initializers.values()]
    assert [item for item in (*items, *constants) if item._metadata is not None] == []
