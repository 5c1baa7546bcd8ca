"""A graph of nodes that are written down and run, never changed, in a fifth of the memory of one that can be.

Whoever cuts a graph into pieces, or writes one as a message, asks nothing of nodes and values that these do not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, TypeAlias, cast

import onnx_ir as ir


class NotedAttributes(dict[str, ir.Attr]):
    """Attributes of a node, by name."""

    __slots__ = ()

    @property
    def data(self) -> NotedAttributes:
        return self


_NONE = NotedAttributes()


class NotedValue:
    """A tensor that a node computes, or a constant."""

    __slots__ = ("_node", "_read", "const_value", "name", "shape", "type")

    doc_string: ClassVar[None] = None
    _metadata: ClassVar[None] = None
    _metadata_props: ClassVar[None] = None
    meta: ClassVar[Mapping[str, object]] = MappingProxyType({})
    metadata_props: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        node: NotedNode | None,
        kind: ir.TypeProtocol | None,
        tensor: ir.TensorProtocol | None = None,
        shape: ir.Shape | None = None,
    ) -> None:
        self.name, self.type, self.shape, self.const_value = name, kind, shape, tensor
        self._node, self._read = node, False

    @property
    def dtype(self) -> ir.DataType | None:
        return None if self.type is None else self.type.dtype

    def producer(self) -> NotedNode | None:
        return self._node

    def is_initializer(self) -> bool:
        return self._node is None

    def is_graph_input(self) -> bool:
        return False

    def is_graph_output(self) -> bool:
        """True if somebody outside the graph reads it."""
        return self._read

    def read_outside(self) -> None:
        self._read = True

    def uses(self) -> Collection[tuple[ir.Node, int]]:
        """Not known, so that nobody takes a constant for unused."""
        return _SOME_USE


Tensor: TypeAlias = ir.Value | NotedValue
_SOME_USE: Collection[tuple[ir.Node, int]] = (cast(tuple[ir.Node, int], ()),)


class NotedNode:
    """An operator, what it reads, and what it computes."""

    __slots__ = ("attributes", "domain", "inputs", "name", "op_type", "outputs")

    doc_string: ClassVar[None] = None
    overload: ClassVar[str] = ""
    _metadata_props: ClassVar[None] = None
    device_configurations: ClassVar[tuple[()]] = ()

    def __init__(
        self,
        key: tuple[str, str],
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, ir.Attr],
        names: Iterable[str],
        types: Iterable[ir.TypeProtocol | None],
    ) -> None:
        self.domain, self.op_type = key
        self.inputs = tuple(inputs)
        self.attributes = NotedAttributes(attributes) if attributes else _NONE
        self.outputs = tuple(NotedValue(name, self, kind) for name, kind in zip(names, types, strict=True))
        self.name = self.outputs[0].name


class NotedGraph:
    """Nodes in an order in which they can run, on the inputs of a model."""

    doc_string: ClassVar[None] = None
    metadata_props: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(self, base: ir.Graph, nodes: Sequence[NotedNode], outputs: Sequence[NotedValue]) -> None:
        self.name, self.inputs, self.opset_imports = base.name, base.inputs, base.opset_imports
        self.nodes, self.outputs = _needed(nodes, outputs), outputs
        read = (value for node in self.nodes for value in node.inputs if isinstance(value, NotedValue))
        self.initializers = {value.name: value for value in read if value.const_value is not None}

    def __iter__(self) -> Iterator[NotedNode]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def as_model(self, ir_version: int) -> ir.Model:
        """This graph, seen as a model to be cut, written and run; nothing else may be asked of it."""
        return ir.Model(cast(ir.Graph, self), ir_version=ir_version)

    def written_into(self, graph: ir.Graph, others: Mapping[str | None, ir.Value]) -> None:
        """Add nodes, and the constants that they read, to a graph that has all `others`; the outputs become its own."""
        made: dict[NotedValue, ir.Value] = {}
        for name, value in self.initializers.items():
            made[value] = ir.Value(name=name, const_value=value.const_value, type=value.type, shape=value.shape)
            graph.initializers[name] = made[value]
        for node in self.nodes:
            inputs = [
                made[value] if isinstance(value, NotedValue) else value and others[value.name] for value in node.inputs
            ]
            outputs = [ir.Value(name=value.name, type=value.type) for value in node.outputs]
            attributes = node.attributes.values()
            graph.append(ir.Node(node.domain, node.op_type, inputs, attributes, outputs=outputs, name=node.name))
            made |= dict(zip(node.outputs, outputs, strict=True))
        graph.outputs[:] = [made[value] for value in self.outputs]


def _needed(nodes: Sequence[NotedNode], outputs: Sequence[NotedValue]) -> list[NotedNode]:
    """The nodes that outputs come from."""
    wanted: set[Tensor | None] = set(outputs)
    found = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            found.append(node)
    return found[::-1]
