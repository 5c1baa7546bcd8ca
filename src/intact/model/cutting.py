"""Cuts pieces out of a model: the nodes between some of its tensors, as a model of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.model.copying import cut_out


class Cutter:
    """A model that pieces are cut from; it stays as it is, and pieces share its weights.

    Tensors are named as in the model. Stops are tensors that a piece does not look behind: they become its inputs.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.values: dict[str, ir.Value] = {value.name or "": value for value in model.graph.inputs}
        self.values |= {value.name or "": value for node in model.graph for value in node.outputs if value.name}
        self._position = {node: index for index, node in enumerate(model.graph)}
        self._order = {value: index for index, value in enumerate(self.values.values())}

    def behind(self, outputs: Sequence[str], stops: Collection[str]) -> list[str]:
        """The inputs that a piece with these outputs has, in the order of the model."""
        return self._walk(outputs, stops)[0]

    def nodes_behind(self, outputs: Sequence[str], stops: Collection[str]) -> list[ir.Node]:
        """The nodes of such a piece, in the order of the model."""
        return self._walk(outputs, stops)[1]

    def piece(
        self, outputs: Sequence[str], stops: Collection[str], like: Mapping[str, np.ndarray] | None = None
    ) -> ir.Model:
        """The nodes that compute `outputs` from `stops`; inputs take type and shape of the arrays in `like`."""
        names, nodes, constants = self._walk(outputs, stops)
        view = ir.GraphView(
            [self.values[name] for name in names],
            [self.values[name] for name in outputs],
            nodes=nodes,
            initializers=constants,
            opset_imports=self.model.opset_imports,
            name="piece",
        )
        graph = cut_out(view)
        for value in graph.inputs:
            if like is not None and value.name is not None and value.name in like:
                array = like[value.name]
                value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
                value.shape = ir.Shape(array.shape)
        return ir.Model(graph, ir_version=self.model.ir_version)

    def _walk(self, outputs: Sequence[str], stops: Collection[str]) -> tuple[list[str], list[ir.Node], list[ir.Value]]:
        inputs: dict[ir.Value, None] = {}
        nodes: set[ir.Node] = set()
        constants: dict[ir.Value, None] = {}
        pending = [self.values[name] for name in outputs]
        wanted = set(pending)
        while pending:
            value = pending.pop()
            producer = value.producer()
            if value.graph is not self.model.graph and producer is None:
                continue  # an input of a body
            if value.is_initializer() and not value.is_graph_input():
                constants[value] = None
            elif producer is None or (value.name in stops and value not in wanted):
                inputs[value] = None
            elif producer.graph is self.model.graph and producer not in nodes:
                nodes.add(producer)
                pending += _read(producer)
        found = sorted(inputs, key=self._order.__getitem__)
        return [v.name or "" for v in found], sorted(nodes, key=self._position.__getitem__), list(constants)


def _read(node: ir.Node) -> list[ir.Value]:
    """The values that a node reads, itself or in its bodies."""
    found = [value for value in node.inputs if value is not None]
    for body in query.bodies(node):
        for inner in body:
            found += _read(inner)
    return found


def joined(pieces: Mapping[str, ir.Model]) -> ir.Model:
    """Pieces side by side as one model, which takes them apart; `key/name` is what was `name` in the piece `key`."""
    inputs: list[ir.Value] = []
    outputs: list[ir.Value] = []
    nodes: list[ir.Node] = []
    constants: list[ir.Value] = []
    opsets: dict[str, int] = {}
    for key, piece in pieces.items():
        opsets |= piece.graph.opset_imports
        inputs.extend(piece.graph.inputs)
        outputs.extend(piece.graph.outputs)
        parts = _taken_apart(piece.graph, key)
        nodes += parts[0]
        constants += parts[1]
    graph = ir.Graph(inputs, outputs, nodes=nodes, initializers=constants, opset_imports=opsets, name="pieces")
    return ir.Model(graph, ir_version=max(piece.ir_version for piece in pieces.values()))


def _taken_apart(graph: ir.Graph, key: str) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes and the constants of a graph, out of it and renamed; constants are new, for pieces share tensors."""
    nodes, inputs, constants = list(graph), list(graph.inputs), []
    for name, old in list(graph.initializers.items()):
        new = ir.Value(name=f"{key}/{name}", type=old.type, shape=old.shape)
        assert old.const_value is not None, "constants of a piece have values"
        new.const_value = ir.LazyTensor(
            lambda tensor=old.const_value: tensor,  # type: ignore[misc]
            dtype=old.const_value.dtype,
            shape=ir.Shape(old.const_value.shape.numpy()),
            name=new.name,
        )
        ir.convenience.replace_all_uses_with(old, new)
        constants.append(new)
    graph.initializers.clear()
    graph.inputs.clear()
    graph.outputs.clear()
    graph.remove(nodes)
    for node in nodes:
        node.name = f"{key}/{node.name}"
    for value in (*inputs, *(value for node in nodes for value in node.outputs)):
        value.name = f"{key}/{value.name}" if value.name else value.name
    return nodes, constants
