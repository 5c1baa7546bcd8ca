"""A model in the form that Rockchip's compiler reads: an older opset, and no grid whose readers it takes for the same.

It takes all readers of a DequantizeLinear for float where one of them is, or where the model returns it, and dies of
the weights of those in integers ("Invalid w_par['dtype'] = float16", rknn-toolkit2 2.5.0). Biases it puts on the grid
of their products itself; one that is there already takes it longer, since it compares the scales one by one. It opens
a session of ONNX Runtime for each node that it reads: around a move of integers there are no Q/DQ nodes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.backends.rknn.first_products import rewrite_first_products, rewrite_first_turns
from intact.backends.rknn.row_joins import rewrite_row_joins
from intact.model import edit, lowering, node_encodings, normalize, query

# The inputs of layers that are biases: the third of each.
_LAYERS, _BIAS = ("Conv", "ConvTranspose", "Gemm"), 2
# Every element that they write is one that they read.
_MOVES = ("Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
# The grid behind them does their work.
CLIPPING = ("Relu", "Clip")
# The farthest that a grid may reach in front of a Sigmoid.
_FINE_SIGMOID = 7.0
# The newest that the compiler reads (rknn-toolkit2 2.5.0: "Unsupport onnx opset 21, need <= 19!").
OPSET = 19


def readable(model: ir.Model, *, halves: bool = False) -> ir.Model:
    """A copy of `model` in an opset that the compiler reads; readers in integers share no DequantizeLinear with others.

    Products that it does not end on have other forms, and biases are floats. Both forms compute the same. A chip with
    `halves` computes in half precision what it would look up in too coarse a table.
    """
    result = lowering.lowered(model, OPSET)
    normalize.name_nodes(result)
    names = edit.Names(result)
    for node in list(query.all_nodes(result)):
        if node.op_type == "DequantizeLinear" and not query.is_constant(node.inputs[0]):
            _part(node, names)
        if node.op_type == "LayerNormalization":
            _say_defaults(node)
    rewrite_first_products(result, names)
    rewrite_first_turns(result, names)
    for node in list(query.all_nodes(result)):
        if node.op_type in _LAYERS:
            _write_bias_in_float(node, names)
        if node.op_type in _MOVES:
            _move_integers(node)
        if halves and node.op_type == "Tanh" and _is_in_integers(node):
            _take_off_grids(node, names)
        if halves and node.op_type == "Sigmoid" and _is_in_integers(node) and _is_looked_up_coarsely(node):
            _turn_round(node, names)
    rewrite_row_joins(result, names)
    return result


def _take_off_grids(node: ir.Node, names: edit.Names) -> None:
    """tanh(x) = -tanh(-x): between two that are on no grid, the compiler computes it in half precision.

    Between grids it looks it up in a table of fewer points, up to two steps off (probed over all inputs of 8 bits,
    rknn-toolkit2 2.5.0).
    """
    value = node.outputs[0]
    before = ir.Node("", "Neg", [node.inputs[0]], name=names.take(f"{node.name}_before"))
    after = ir.Node("", "Neg", [value], name=names.take(f"{node.name}_after"))
    for added in (before, after):
        added.outputs[0].name = names.take(f"{added.name}_negated")
        edit.describe_as(added.outputs[0], value)
    edit.insert_before(node, 0, before)
    edit.insert_after(value, after, names)


def _is_looked_up_coarsely(node: ir.Node) -> bool:
    """True if the grid in front of a Sigmoid reaches further than the fine table, which the compiler has up to 7.

    Beyond, the table is coarser, and results are up to two steps off (probed over all inputs of 8 bits and grids that
    reach from 6 to 10, rknn-toolkit2 2.5.0). What multiplies its own input is one layer with that, a Swish; behind a
    convolution it is one with that, and a step off at most (probed up to 40).
    """
    x = node.inputs[0]
    back = None if x is None else x.producer()
    found = None if back is None else node_encodings.encoding_of(back)
    if x is None or found is None or found.axis is not None or any(use.node is not node for use in x.uses()):
        return False
    if back is not None and _is_part_of_layer(back):
        return False
    return max(float(abs(end)) for end in found.ends()) > _FINE_SIGMOID


def _is_part_of_layer(back: ir.Node) -> bool:
    """True if a DequantizeLinear is all that reads the grid behind a convolution."""
    levels = back.inputs[0]
    there = None if levels is None or len(levels.uses()) > 1 else levels.producer()
    written = None if there is None or there.op_type != "QuantizeLinear" else there.inputs[0]
    layer = None if written is None or len(written.uses()) > 1 else written.producer()
    return layer is not None and layer.op_type == "Conv"


def _turn_round(node: ir.Node, names: edit.Names) -> None:
    """sigmoid(x) = 1 - sigmoid(-x): between two that are on no grid, the compiler computes it in half precision."""
    value, graph = node.outputs[0], node.graph
    assert graph is not None, f"{node.name} belongs to no graph"
    before = ir.Node("", "Neg", [node.inputs[0]], name=names.take(f"{node.name}_before"))
    one = edit.add_initializer(graph, np.array(1, np.float32), names.take(f"{node.name}_one"))
    after = ir.Node("", "Sub", [one, value], name=names.take(f"{node.name}_after"))
    for added in (before, after):
        added.outputs[0].name = names.take(f"{added.name}_turned")
        edit.describe_as(added.outputs[0], value)
    edit.insert_before(node, 0, before)
    edit.insert_after(value, after, names)


def _move_integers(node: ir.Node) -> None:
    """Q(move(DQ(x, s, z)), s, z) = move(x): the node reads and writes the integers themselves."""
    value, moved = node.inputs[0], node.outputs[0]
    first = None if value is None else value.producer()
    last = query.only_consumer(moved)
    if first is None or last is None or (first.op_type, last.op_type) != ("DequantizeLinear", "QuantizeLinear"):
        return
    if query.is_constant(first.inputs[0]) or last.outputs[0].is_graph_output() or not _are_on_one_grid(first, last):
        return
    written = last.outputs[0]
    node.replace_input_with(0, first.inputs[0])
    moved.type = ir.TensorType(node_encodings.integer_type(last))
    for reader, index in list(written.uses()):
        reader.replace_input_with(index, moved)
    edit.remove_dead([last, first])


def _are_on_one_grid(first: ir.Node, last: ir.Node) -> bool:
    """True if two nodes convert from and to the same integers, by one scale and zero point."""
    one, other = node_encodings.encoding_of(first), node_encodings.encoding_of(last)
    return one is not None and other is not None and one.axis is None and one.same_grid(other)


def _write_bias_in_float(node: ir.Node, names: edit.Names) -> None:
    """Put the floats in the place of a bias on a grid of 32 bits."""
    bias, graph = query.input_(node, _BIAS), node.graph
    source = None if bias is None else bias.producer()
    assert graph is not None, f"{node.name} belongs to no graph"
    if bias is None or source is None or source.op_type != "DequantizeLinear":
        return
    floats, integers = node_encodings.constant_behind(bias), query.constant_tensor(source.inputs[0])
    if floats is None or integers is None or integers.dtype != ir.DataType.INT32:
        return
    node.replace_input_with(_BIAS, edit.add_initializer(graph, floats, names.take(f"{bias.name}_float")))
    edit.remove_dead([source])


def _say_defaults(node: ir.Node) -> None:
    """Write down what a normalization leaves to ONNX: the compiler dies of attributes that are not there."""
    for attribute in (ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", 1e-5)):
        node.attributes.setdefault(attribute.name, attribute)


def _part(node: ir.Node, names: edit.Names) -> None:
    """Give readers in integers a node of their own where there are others."""
    value, graph = node.outputs[0], node.graph
    assert graph is not None, f"{node.name} belongs to no graph"
    uses = [(reader, index) for reader, index in value.uses() if _is_in_integers(reader)]
    if not uses or (len(uses) == len(value.uses()) and not value.is_graph_output()):
        return
    own = ir.Node("", "DequantizeLinear", node.inputs, attributes=list(node.attributes.values()), num_outputs=1)
    own.name, own.outputs[0].name = (names.take(f"{old}_integers") for old in (node.name, value.name))
    edit.describe_as(own.outputs[0], value)
    edit.place(graph, own, node)
    for reader, index in uses:
        reader.replace_input_with(index, own.outputs[0])


def _is_in_integers(node: ir.Node) -> bool:
    """True if everything that a node computes with comes from grids, and all that it computes goes to grids."""
    read = [value for value in node.inputs if value is not None and query.is_float(value)]
    sources = [value.producer() for value in read if not query.is_constant(value)]
    on_grids = all(source is not None and source.op_type == "DequantizeLinear" for source in sources)
    return on_grids and all(map(goes_to_grids, node.outputs))


def goes_to_grids(value: ir.Value) -> bool:
    """True if everything that reads a value brings it to a grid, or clips it for one."""
    readers = [use.node for use in value.uses()]
    return not value.is_graph_output() and all(
        reader.op_type == "QuantizeLinear" or (reader.op_type in CLIPPING and goes_to_grids(reader.outputs[0]))
        for reader in readers
    )
