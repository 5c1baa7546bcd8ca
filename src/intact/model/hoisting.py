"""Values inside bodies of If, Loop and Scan as outputs of the whole model.

ONNX Runtime gives values of the main graph alone. A value of a body comes out in one dimension: all its elements, of
every iteration one after the other, and none where its branch did not run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import edit, query


def open_graphs(model: ir.Model) -> list[ir.Graph]:
    """The graphs whose values can be seen from outside: the main graph first, outer before inner."""
    pending = [(model.graph, False)]
    found = []
    while pending:
        graph, stacks = pending.pop()
        found.append(graph)
        # What a Scan stacks has one size in all iterations; a body within one may run or not.
        inner = [
            (body, node.op_type == "Scan")
            for node in graph
            if node.attributes.data and not stacks and (node.domain, node.op_type) in _LIFT
            for body in query.bodies(node)
        ]
        pending += reversed(inner)
    return found


class Hoist:
    """A model in the making that returns values of its bodies."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = edit.Names(model)

    def lift(self, value: ir.Value) -> ir.Value:
        """The value's elements as a value of the main graph, under the name that the value had."""
        name, kind = value.name or "", value.type
        value.name = self._names.take(f"{name}/inside")
        shape = query.static_shape(value)
        flat = self._flat(value, None if shape is None else int(np.prod(shape)))
        owners = {body: node for node in query.all_nodes(self._model) for body in query.bodies(node)}
        while flat.graph is not self._model.graph:
            owner = owners[_graph(flat)]
            flat = _LIFT[owner.domain, owner.op_type](self, owner, flat)
        flat.name, flat.type, flat.shape = name, kind, ir.Shape([None])
        return flat

    def _flat(self, value: ir.Value, size: int | None) -> ir.Value:
        """All elements of a value in one dimension."""
        graph = _graph(value)
        length = edit.add_initializer(graph, np.array([-1]), self._names.take(f"{value.name}/length"))
        return self._add(graph, ir.node("Reshape", [value, length]), value, [size])

    def _add(self, graph: ir.Graph, node: ir.Node, like: ir.Value, shape: list[int | None]) -> ir.Value:
        """Put a node at the end of a graph; its output has the type of another value."""
        node.name = self._names.take(f"{like.name}/{node.op_type}")
        result = node.outputs[0]
        result.name, result.type, result.shape = self._names.take(f"{like.name}/flat"), like.type, ir.Shape(shape)
        graph.append(node)
        return result

    def _out_of_if(self, node: ir.Node, flat: ir.Value) -> ir.Value:
        """One more result of an If; a branch that does not have it gives an empty one."""
        for body in query.bodies(node):
            returned = flat if body is flat.graph else self._empty(body, flat)
            body.outputs.append(returned)
        return self._further_output(node, flat)

    def _empty(self, body: ir.Graph, like: ir.Value) -> ir.Value:
        assert like.dtype is not None, f"{like.name!r} has a type"
        nothing = ir.tensor(np.zeros(0, like.dtype.numpy()), dtype=like.dtype)
        return self._add(body, ir.node("Constant", [], {"value": nothing}), like, [0])

    def _out_of_scan(self, node: ir.Node, flat: ir.Value) -> ir.Value:
        """One more stacked result of a Scan."""
        _graph(flat).outputs.append(flat)
        for name in ("scan_output_axes", "scan_output_directions"):
            if name in node.attributes:
                node.attributes[name] = ir.AttrInt64s(name, [*node.attributes[name].as_ints(), 0])
        return self._flat(self._further_output(node, flat), None)

    def _out_of_loop(self, node: ir.Node, flat: ir.Value) -> ir.Value:
        """One more stacked result of a Loop; what has another size in every iteration is carried along and grows."""
        if query.static_shape(flat) is None:
            return self._carried(node, flat)
        _graph(flat).outputs.append(flat)
        return self._flat(self._further_output(node, flat), None)

    def _carried(self, node: ir.Node, flat: ir.Value) -> ir.Value:
        body, graph = _graph(flat), _graph(node.outputs[0])
        before = ir.Value(name=self._names.take(f"{flat.name}/before"), type=flat.type, shape=ir.Shape([None]))
        joined = self._add(body, ir.node("Concat", [before, flat], {"axis": 0}), flat, [None])
        body.inputs.insert(2, before)
        body.outputs.insert(1, joined)
        assert flat.dtype is not None, f"{flat.name!r} has a type"
        nothing = ir.tensor(np.zeros(0, flat.dtype.numpy()), dtype=flat.dtype)
        first = edit.add_initializer(graph, nothing, self._names.take(f"{flat.name}/first"))
        attributes = list(node.attributes.values())
        node.attributes.clear()
        longer = ir.Node(
            node.domain,
            node.op_type,
            [*node.inputs[:2], first, *node.inputs[2:]],
            attributes,
            num_outputs=len(node.outputs) + 1,
            name=node.name,
        )
        graph.insert_before(node, longer)
        self._describe(longer.outputs[0], flat)
        for old, new in zip(node.outputs, longer.outputs[1:], strict=True):
            new.name, new.type, new.shape = self._names.take(f"{old.name}/longer"), old.type, old.shape
            edit.replace_value(old, new, self._names)
        graph.remove(node, safe=True)
        return longer.outputs[0]

    def _further_output(self, node: ir.Node, flat: ir.Value) -> ir.Value:
        node.resize_outputs(len(node.outputs) + 1)
        self._describe(node.outputs[-1], flat)
        return node.outputs[-1]

    def _describe(self, value: ir.Value, flat: ir.Value) -> None:
        value.name, value.type = self._names.take(f"{flat.name}/out"), flat.type


def _graph(value: ir.Value) -> ir.Graph:
    assert isinstance(value.graph, ir.Graph), f"{value.name!r} is in a graph"
    return value.graph


_LIFT = {("", "If"): Hoist._out_of_if, ("", "Loop"): Hoist._out_of_loop, ("", "Scan"): Hoist._out_of_scan}
