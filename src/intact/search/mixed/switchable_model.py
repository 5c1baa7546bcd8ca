"""A float model with switches: any of its tensors can be rounded, and any of its weights, in a run of their own.

Rounding stands in a branch that costs nothing while its switch is off, so that one model serves for every experiment,
and what lies before the switch is not computed again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.model import edit, io
from intact.numbers.encoding import Encoding
from intact.search.mixed.segments import Segments

Feeds = Mapping[str, np.ndarray]
_MODEL, _NAMES = "model.onnx", "names.json"
_OFF, _ON = np.array(False), np.array(True)


class SwitchableModel:
    """A copy of a model that switches are put into, and that then runs with some of them on."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model.clone()
        self._graph = self._model.graph
        self._names = edit.Names(self._model)
        self._outputs = {value.name or "": value for value in self._graph.outputs}
        self._values = {value.name or "": value for value in self._graph.inputs}
        self._values |= {value.name or "": value for node in self._graph for value in node.outputs}
        self._switches: list[str] = []
        self._segments: Segments | None = None

    @classmethod
    def saved(cls, folder: Path) -> SwitchableModel:
        """The model that was saved into a folder, as another process runs it; it gets no more switches."""
        names: dict[str, list[str]] = json.loads((folder / _NAMES).read_text(encoding="utf-8"))
        result = cls(io.load(folder / _MODEL))
        result._switches = names["switches"]
        result._segments = Segments(result._model, names["outputs"])
        return result

    def save(self, folder: Path) -> None:
        """Write the model with its switches into a folder, for `saved`."""
        io.save(self._model, folder / _MODEL)
        names = {"switches": self._switches, "outputs": [value.name for value in self._outputs.values()]}
        (folder / _NAMES).write_text(json.dumps(names), encoding="utf-8")

    def switch_weights(self, weights: Mapping[str, Mapping[int, np.ndarray]]) -> str:
        """A switch that gives nodes, by name, other constants at some of their inputs."""
        switch = self._switch()
        for node in [node for node in self._graph if node.name in weights]:
            self._choose_node(node, weights[node.name or ""], switch)
        return switch.name or ""

    def switch_tensor(self, name: str, encoding: Encoding, readers: Collection[str] | None = None) -> str:
        """A switch that puts a tensor on a grid, for some readers (nodes by name) or for everyone."""
        switch = self._switch()
        value = self._values[name]
        uses = [(node, index) for node, index in value.uses() if readers is None or node.name in readers]
        rounded = self._choose(switch, self._rounding(value, encoding), value)
        for node, index in uses:
            node.replace_input_with(index, rounded)
        if readers is None:
            self._values[name] = rounded
            self._outputs = {key: rounded if found is value else found for key, found in self._outputs.items()}
        return switch.name or ""

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        """The outputs of the model, in order, with every switch off."""
        return self._cut().run({**feeds, **dict.fromkeys(self._switches, _OFF)})

    def again(self, switches: Sequence[str]) -> list[np.ndarray]:
        """The outputs for the same inputs as before, with these switches on."""
        return self._cut().again(dict.fromkeys(switches, _ON))

    def effort(self, switches: Sequence[str]) -> float:
        """The share of a run of the whole model that it takes to run with these switches on."""
        return self._cut().share_behind(switches)

    def _cut(self) -> Segments:
        """The model in segments; from here on it gets no more switches."""
        if self._segments is None:
            self._segments = Segments(self._model, [value.name or "" for value in self._outputs.values()])
        return self._segments

    def _switch(self) -> ir.Value:
        name = self._names.take("switch")
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        self._graph.inputs.append(value)
        self._switches.append(name)
        return value

    def _rounding(self, value: ir.Value, encoding: Encoding) -> list[ir.Node]:
        kind = ir.DataType[encoding.dtype.upper()]
        scale = self._constant(encoding.scale.astype(np.float32))
        zero_point = self._constant(encoding.zero_point.astype(kind.numpy()))
        quantize = self._named(ir.node("QuantizeLinear", [value, scale, zero_point]))
        return [quantize, self._named(ir.node("DequantizeLinear", [quantize.outputs[0], scale, zero_point]))]

    def _choose(self, switch: ir.Value, then: list[ir.Node], value: ir.Value) -> ir.Value:
        """The last result of some nodes, or a value as it is."""
        otherwise = [self._named(ir.node("Identity", [value]))]
        (result,) = self._branch(switch, then, otherwise, [value], value.producer())
        return result

    def _choose_node(self, node: ir.Node, constants: Mapping[int, np.ndarray], switch: ir.Value) -> None:
        """One of two forms of a node; what it computes keeps its names, for other switches to find."""
        kept, changed = self._copy(node), self._copy(node)
        for index, array in constants.items():
            changed.replace_input_with(index, self._constant(array))
        results = self._branch(switch, [changed], [kept], node.outputs, node)
        for old, new in zip(node.outputs, results, strict=True):
            name = old.name or ""
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            self._outputs = {key: new if found is old else found for key, found in self._outputs.items()}
            self._values[name] = new
        self._graph.remove(node, safe=True)

    def _copy(self, node: ir.Node) -> ir.Node:
        return self._named(
            ir.Node(
                node.domain,
                node.op_type,
                list(node.inputs),
                list(node.attributes.values()),
                num_outputs=len(node.outputs),
                name=node.name,
            )
        )

    def _branch(
        self,
        switch: ir.Value,
        then: Sequence[ir.Node],
        otherwise: Sequence[ir.Node],
        like: Sequence[ir.Value],
        after: ir.Node | None,
    ) -> Sequence[ir.Value]:
        branches = {"then_branch": self._body(then), "else_branch": self._body(otherwise)}
        node = self._named(ir.node("If", [switch], branches, num_outputs=len(like)))
        for result, value in zip(node.outputs, like, strict=True):
            result.type, result.shape = value.type, value.shape
        if after is not None:
            self._graph.insert_after(after, node)
        else:
            self._graph.insert_before(self._graph[0], node)
        return node.outputs

    def _body(self, nodes: Sequence[ir.Node]) -> ir.Graph:
        return ir.Graph([], list(nodes[-1].outputs), nodes=list(nodes), name=self._names.take("body"))

    def _named(self, node: ir.Node) -> ir.Node:
        node.name = node.name or self._names.take(node.op_type)
        for value in node.outputs:
            value.name = self._names.take("probed")
        return node

    def _constant(self, array: np.ndarray) -> ir.Value:
        return edit.add_initializer(self._graph, array, self._names.take("constant"))
