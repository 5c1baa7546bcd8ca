"""Rows that are joined, in four dimensions.

In three, Rockchip's compiler may take rows for channels: for a Concat it then stores a table of as many rows and
columns as there are, nearly all zeros, and leaves moves around it to the CPU. In four it does neither (rknn-toolkit2
2.5.0).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.model import edit, query

_RANK, _ROWS = 3, 1
# A value, and the same on a grid.
_ON_A_GRID = 2


def rewrite_row_joins(model: ir.Model, names: edit.Names) -> None:
    """Concat(x, …; axis 1) of rank 3 = the same of rank 4 with an axis of one before the rows, and a Reshape back."""
    for node in [node for node in query.all_nodes(model) if node.op_type == "Concat" and _joins_rows(node)]:
        for index, value in enumerate(node.inputs):
            assert value is not None, f"{node.name} joins what is there"
            node.replace_input_with(index, _raised(value, node, names))
        node.attributes["axis"] = ir.AttrInt64("axis", _ROWS + 1)
        _bring_back(node, names)


def _joins_rows(node: ir.Node) -> bool:
    shapes = [query.static_shape(value) for value in (*node.inputs, *node.outputs)]
    return (
        all(shape is not None and len(shape) == _RANK for shape in shapes)
        and node.attributes.get_int("axis", 0) % _RANK == _ROWS
        and not any(map(_is_constant, node.inputs))
    )


def _is_constant(value: ir.Value | None) -> bool:
    source = None if value is None else value.producer()
    return query.is_constant(value) or (source is not None and all(map(query.is_constant, source.inputs)))


def _raised(value: ir.Value, reader: ir.Node, names: edit.Names) -> ir.Value:
    """The value in four dimensions; one from a grid turns into them as integers, as moves of those are."""
    shape, back = _with_one(query.known_shape(value)), value.producer()
    if back is None or back.inputs[0] is None or not _is_one_grid(back):
        node = _reshape(value, shape, names)
        reader.prepend(node)
        return node.outputs[0]
    moved = _reshape(back.inputs[0], shape, names)
    own = ir.Node("", "DequantizeLinear", [moved.outputs[0], *back.inputs[1:]], list(back.attributes.values()))
    own.name, own.outputs[0].name = (names.take(f"{old}_rows") for old in (back.name, value.name))
    own.outputs[0].type, own.outputs[0].shape = value.type, ir.Shape(shape)
    reader.prepend([moved, own])
    reader.replace_input_with(reader.inputs.index(value), own.outputs[0])
    edit.remove_dead([back])
    return own.outputs[0]


def _is_one_grid(back: ir.Node) -> bool:
    scale = query.constant(back.inputs[1]) if back.op_type == "DequantizeLinear" else None
    return scale is not None and scale.ndim == 0


def _bring_back(node: ir.Node, names: edit.Names) -> None:
    """Bring what is joined to three dimensions: behind its grid or a Softmax of each row, or else behind itself."""
    values = [node.outputs[0]]
    for op in ("QuantizeLinear", "DequantizeLinear", "Softmax"):
        reader = query.only_consumer(values[-1])
        if reader is None or reader.op_type != op or values[-1].is_graph_output() or not _is_of_rows(reader):
            break
        values.append(reader.outputs[0])
    # A grid leads to a Softmax, or ends on integers, which are moved as they are.
    values = values if len(values) > _ON_A_GRID + 1 else values[:_ON_A_GRID]
    shape = query.known_shape(values[0])
    edit.insert_after(values[-1], _reshape(values[-1], shape, names), names)
    for value in values:
        # A shape without a type is not written.
        value.shape = None if value.type is None else ir.Shape(_with_one(shape))
    for reader in (value.producer() for value in values):
        if reader is not None and reader.op_type == "Softmax":
            reader.attributes["axis"] = ir.AttrInt64("axis", -1)


def _is_of_rows(node: ir.Node) -> bool:
    return node.op_type != "Softmax" or node.attributes.get_int("axis", -1) % _RANK == _RANK - 1


def _with_one(shape: Sequence[int]) -> list[int]:
    return [*shape[:_ROWS], 1, *shape[_ROWS:]]


def _reshape(value: ir.Value, shape: Sequence[int], names: edit.Names) -> ir.Node:
    graph, name = value.graph, names.take(f"{value.name}_rows")
    assert graph is not None, f"{value.name} belongs to no graph"
    sizes = edit.add_initializer(graph, np.array(shape, np.int64), names.take(f"{name}_shape"))
    node = ir.Node("", "Reshape", [value, sizes], name=name)
    node.outputs[0].name = names.take(f"{name}_output")
    node.outputs[0].type, node.outputs[0].shape = value.type, ir.Shape(shape)
    return node
