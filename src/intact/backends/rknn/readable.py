"""A model in the form that Rockchip's compiler reads: an older opset, and no grid whose readers it takes for the same.

It takes all readers of a DequantizeLinear for float where one of them is, or where the model returns it, and dies of
the weights of those in integers ("Invalid w_par['dtype'] = float16", rknn-toolkit2 2.5.0).
"""

from __future__ import annotations

import onnx_ir as ir

from intact.model import census, edit, lowering, normalize, query
from intact.numbers.integer_types import GRID_TYPES

# The newest that the compiler reads (rknn-toolkit2 2.5.0: "Unsupport onnx opset 21, need <= 19!").
OPSET = 19


def readable(model: ir.Model) -> ir.Model:
    """A copy of `model` in an opset that the compiler reads; readers in integers share no DequantizeLinear with others.

    Both forms compute the same.
    """
    result = lowering.lowered(model, OPSET)
    normalize.name_nodes(result)
    names = edit.Names(result)
    integers = {types.node for types in census.types_of(result) if types.activations in GRID_TYPES}
    for node in list(query.all_nodes(result)):
        if node.op_type == "DequantizeLinear" and not query.is_constant(node.inputs[0]):
            _part(node, integers, names)
    return result


def _part(node: ir.Node, integers: set[str], names: edit.Names) -> None:
    """Give readers in integers a node of their own where there are others."""
    value, graph = node.outputs[0], node.graph
    assert graph is not None, f"{node.name} belongs to no graph"
    uses = [(reader, index) for reader, index in value.uses() if reader.name in integers]
    if not uses or (len(uses) == len(value.uses()) and not value.is_graph_output()):
        return
    own = ir.Node("", "DequantizeLinear", node.inputs, attributes=list(node.attributes.values()), num_outputs=1)
    own.name, own.outputs[0].name = (names.take(f"{old}_integers") for old in (node.name, value.name))
    edit.describe_as(own.outputs[0], value)
    edit.place(graph, own, node)
    for reader, index in uses:
        reader.replace_input_with(index, own.outputs[0])
