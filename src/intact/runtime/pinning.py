"""Keeps nodes of a model on the CPU, by ONNX Runtime's own means: an annotation that says which provider gets a node.

Leaving a node in a form that the NPU refuses is not enough: where the NPU's layout differs, ONNX Runtime changes a
node for the NPU before the NPU is asked, and cannot change it back. But ONNX Runtime cannot split a graph around an
annotated node that others depend on. One that the NPU would take, and must not, is hidden as well: a Compress that
keeps all makes its shapes unknown, which no compiler for fixed shapes takes, and a Reshape makes them known again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import edit, query

_KEY, _LAYER = "layer_ann", "intact_cpu"
# By the provider's name: on a machine that only simulates the NPU, `cpu` would mean the simulator.
SETTING = ("session.layer_assignment_settings", f"CPUExecutionProvider(={_LAYER})")
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def pin(model: ir.Model, names: Collection[str]) -> None:
    """Annotate the nodes with these names, and the conversions that only they need."""
    pinned = {node for node in query.all_nodes(model) if node.name in names}
    nodes = list(query.all_nodes(model))
    for node in nodes:
        if node.op_type == _QUANTIZE and _producer(node) in pinned:
            pinned.add(node)
    for node in reversed(nodes):
        if node.op_type in (_QUANTIZE, _DEQUANTIZE) and _is_needed_only_by(node, pinned):
            pinned.add(node)
    for node in pinned:
        node.metadata_props[_KEY] = _LAYER


def hide(model: ir.Model, names: Collection[str]) -> None:
    """Make the shapes of what nodes with these names read and write unknown, as far as they are known before."""
    taken = edit.Names(model)
    for node in [node for node in model.graph if node.name in names]:
        read = next((value for value in node.inputs if value is not None and not query.is_constant(value)), None)
        rows = None if read is None else query.static_shape(read)
        shapes = [query.static_shape(value) for value in node.outputs]
        if read is None or not rows or any(shape is None for shape in shapes):
            continue
        every = edit.add_initializer(model.graph, np.ones(rows[0], bool), taken.take(f"{node.name}/every"))
        opened = _between(taken, "Compress", (read, every), [ir.AttrInt64("axis", 0)])
        opened.shape = ir.Shape([None, *rows[1:]])
        model.graph.insert_before(node, _made(opened))
        node.replace_input_with(node.inputs.index(read), opened)
        for value, shape in zip(node.outputs, shapes, strict=True):
            sizes = edit.add_initializer(model.graph, np.array(shape, np.int64), taken.take(f"{value.name}/sizes"))
            closed = _between(taken, "Reshape", (value, sizes))
            closed.shape = value.shape
            model.graph.insert_after(node, _made(closed))
            edit.replace_value(value, closed, taken)
            _made(closed).replace_input_with(0, value)
            value.shape = None


def _between(
    taken: edit.Names, op: str, inputs: tuple[ir.Value, ir.Value], attributes: Sequence[ir.Attr] = ()
) -> ir.Value:
    """The result of an operator that gives the numbers of its first input."""
    node = ir.Node("", op, list(inputs), attributes, name=taken.take(f"{inputs[0].name}/{op}"))
    result = node.outputs[0]
    result.name, result.type = taken.take(f"{inputs[0].name}/{op}/result"), inputs[0].type
    return result


def _made(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None, "it was made by a node"
    return node


def _producer(node: ir.Node) -> ir.Node | None:
    return node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None


def _is_needed_only_by(node: ir.Node, pinned: set[ir.Node]) -> bool:
    """True if a conversion stands between pinned nodes, or between one and the outside of the graph."""
    readers = node.outputs[0].consumers()
    source = _producer(node)
    if any(reader not in pinned for reader in readers):
        return False
    if node.op_type == _QUANTIZE or not readers:
        # The integers of a computed tensor come from where it was computed, and results leave as they were.
        return source in pinned if not readers else source is None or source in pinned
    return True
