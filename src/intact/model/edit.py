"""Edits of a graph that keep it valid: names stay unique, graph outputs keep theirs, nodes stay sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import mapped, query
from intact.model.copying import shape_of, shared


class Names:
    """Hands out names that no node or value of the model has; the same calls give the same names."""

    def __init__(self, model: ir.Model) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        for graph in query.all_graphs(model):
            self._taken.update(value.name for value in graph.inputs if value.name)
            self._taken.update(graph.initializers)
            for node in graph:
                self._taken.add(node.name or "")
                for value in node.outputs:
                    self._taken.add(value.name or "")

    def take(self, wanted: str) -> str:
        """Return `wanted`, or `wanted_1`, `wanted_2` … whichever is the first that is free."""
        name = wanted
        while not name or name in self._taken:
            number = self._next.get(wanted, 1)
            self._next[wanted] = number + 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def add_initializer(graph: ir.Graph, array: np.ndarray | ir.TensorProtocol, name: str) -> ir.Value:
    """Add a constant to the graph under a name that is free (see `Names`)."""
    tensor = _named(array, name)
    shape = tensor.shape if isinstance(tensor, ir.Tensor) else ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=shape)
    graph.initializers[name] = value
    return value


def _named(array: np.ndarray | ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    # Large graphs have many constants, and `ir.tensor` asks many questions about each.
    if isinstance(array, np.ndarray):
        return ir.Tensor(mapped.aside(array), shape=shape_of(array.shape), name=name)
    if isinstance(array, ir.Tensor):
        return ir.Tensor(mapped.aside(array.numpy()), dtype=array.dtype, shape=shared(array.shape), name=name)
    return ir.tensor(array, name=name)


def replace_value(old: ir.Value, new: ir.Value, names: Names) -> None:
    """Make every use of `old` a use of `new`; a graph output keeps its name."""
    for user, index in old.uses():
        user.replace_input_with(index, new)
    if not old.is_graph_output():
        return
    graph = old.graph
    assert graph is not None, f"graph output {old.name!r} belongs to no graph"
    source = new if can_be_renamed(new, graph) else _identity(new, graph, names)
    old.name, source.name = source.name, old.name
    describe_as(source, old)
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = source


def can_be_renamed(value: ir.Value, graph: ir.Graph) -> bool:
    """True if the value may take the name of an output of the graph: it has no name that others rely on."""
    return value.producer() is not None and value.graph is graph and not value.is_graph_output()


def _identity(value: ir.Value, graph: ir.Graph, names: Names) -> ir.Value:
    """A copy of a value whose own name has to stay: an input, a constant, another output, an outer value."""
    node = ir.Node("", "Identity", [value], name=names.take(f"{value.name}/Identity"))
    node.outputs[0].name = names.take(f"{value.name}/copy")
    graph.append(node)
    return node.outputs[0]


def describe_as(new: ir.Value, old: ir.Value) -> None:
    """Give `new` the element type, shape and metadata of `old` where it has none of its own."""
    if new.type is None and old.type is not None:
        new.type = old.type
    if new.shape is None and old.shape is not None:
        new.shape = old.shape.copy()
    for key, text in old.metadata_props.items():
        new.metadata_props.setdefault(key, text)


def place(graph: ir.Graph, node: ir.Node, after: ir.Node | None) -> None:
    """Put `node` behind another one, or in front of all where that is None."""
    if after is not None:
        graph.insert_after(after, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def insert_after(value: ir.Value, node: ir.Node, names: Names) -> None:
    """Put `node`, which reads `value`, between it and all its other uses.

    A graph output keeps its name: it passes to the output of `node`, whose own name passes to `value`.
    """
    producer, graph = value.producer(), value.graph
    assert graph is not None, f"{value.name!r} belongs to no graph"
    place(graph, node, producer)
    own = [index for index, read in enumerate(node.inputs) if read is value]
    replace_value(value, node.outputs[0], names)
    for index in own:
        node.replace_input_with(index, value)


def insert_before(consumer: ir.Node, index: int, node: ir.Node) -> None:
    """Put `node` in front of one input of `consumer`; other uses of that value stay as they are."""
    consumer.prepend(node)
    consumer.replace_input_with(index, node.outputs[0])


def splice(
    body: ir.Graph, before: ir.Node, values: Sequence[ir.Value], names: Names, called: Callable[[str], str]
) -> list[ir.Value]:
    """Move what is in `body` in front of a node, reading `values` for its inputs; return what its outputs are then.

    `called` gives the name that a node or value wants there.
    """
    graph, nodes = before.graph, list(body)
    assert isinstance(graph, ir.Graph), f"{before.name!r} is in a graph"
    given = dict(zip(body.inputs, values, strict=True))
    results = [given.get(value, value) for value in body.outputs]
    body.outputs.clear()
    body.remove(nodes)
    for constant in list(body.initializers.values()):
        del body.initializers[constant.name or ""]
        constant.name = names.take(called(constant.name or ""))
        graph.initializers[constant.name] = constant
    for old, new in given.items():
        for user, position in list(old.uses()):
            user.replace_input_with(position, new)
    for node in nodes:
        node.name = names.take(called(node.name or node.op_type))
        for value in node.outputs:
            value.name = names.take(called(value.name)) if value.name else value.name
    graph.insert_before(before, nodes)
    return results


def remove_dead(nodes: Iterable[ir.Node]) -> None:
    """Remove those of `nodes` that nothing uses, then what only they used."""
    remains = Remains()
    remains.release(nodes)
    remains.take_out()


class Remains:
    """Nodes that nothing uses, and the values from no node that they read: both stay in their graphs until `take_out`.

    That is cheaper for many at once, the more so as a constant may have many uses, which are counted once then.
    """

    def __init__(self) -> None:
        self.nodes: dict[ir.Node, None] = {}
        self._sources: dict[ir.Value, None] = {}

    def release(self, nodes: Iterable[ir.Node]) -> list[ir.Value]:
        """Add those of `nodes` that nothing uses, then what only they used; return what stays and lost a use.

        Initializers are not among that. What was added counts as a use of nothing that stays.
        """
        added: list[ir.Node] = []
        pending = list(nodes)[::-1]
        while pending:
            node = pending.pop()
            if node in self.nodes or node.graph is None or not self._is_dead(node):
                continue
            for gone in _with_bodies(node) if node.attributes.data else (node,):
                self.nodes[gone] = None
                added.append(gone)
                for value in gone.inputs:
                    producer = None if value is None else value.producer()
                    if producer is not None:
                        pending.append(producer)
        released: list[ir.Value] = []
        for node in added:
            self._detach(node, released)
        return released

    def _is_dead(self, node: ir.Node) -> bool:
        """True if nothing but the added nodes uses an output of the node."""
        for output in node.outputs:
            if output.is_graph_output():
                return False
            for user, _ in output.uses():
                if user not in self.nodes:
                    return False
        return True

    def _detach(self, node: ir.Node, released: list[ir.Value]) -> None:
        """End the uses that a node which was added makes of what stays; add that to `released`."""
        for index, value in enumerate(node.inputs):
            producer = None if value is None else value.producer()
            if value is None or producer in self.nodes:
                continue
            node.replace_input_with(index, None)
            if producer is None:
                self._sources[value] = None
            if producer is not None or value.is_graph_input():
                released.append(value)

    def take_out(self) -> None:
        """Take the nodes out of their graphs, and the initializers that they were the last to use."""
        self._take_nodes_out()
        for value in self._sources:
            _drop_initializer(value)
        self.nodes.clear()
        self._sources.clear()

    def take_apart(self) -> list[ir.Node]:
        """Take the nodes out of their graphs, and apart, so that nothing but the result refers to them.

        They would refer to each other otherwise, and be freed by a collection only.
        """
        self._take_nodes_out()
        found = list(self.nodes)
        self.nodes.clear()
        for node in found:
            node.resize_inputs(0)
        for node in found:
            node.resize_outputs(0)
            del node.attributes._owner
        return found

    def _take_nodes_out(self) -> None:
        owned: dict[ir.Graph, list[ir.Node]] = {}
        for node in self.nodes:
            graph = node.graph
            if graph is not None:
                owned.setdefault(graph, []).append(node)
        for graph, nodes in owned.items():
            graph.remove(nodes)


def prune(model: ir.Model) -> None:
    """Remove every node and initializer that no output needs."""
    for graph in reversed(list(query.all_graphs(model))):
        remove_dead(reversed(list(graph)))
        for value in list(graph.initializers.values()):
            _drop_initializer(value)


def _with_bodies(node: ir.Node) -> list[ir.Node]:
    """The node, then those in its bodies, however deep."""
    found = [node]
    for item in found:
        found += [inner for body in query.bodies(item) for inner in body]
    return found


def _drop_initializer(value: ir.Value) -> None:
    if value.is_initializer() and query.is_unused(value) and not value.is_graph_input():
        graph = value.graph
        assert graph is not None, f"initializer {value.name!r} belongs to no graph"
        del graph.initializers[value.name or ""]
