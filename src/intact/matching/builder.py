"""Builds the nodes that a rule puts in place of a match."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from intact.matching.pattern import Attribute, OpKey
from intact.model import edit, query, upgrade


class Origins:
    """From which nodes of the given model each new node came; most are gone before `write` puts that down."""

    def __init__(self) -> None:
        self._names: dict[ir.Node, tuple[str, ...]] = {}

    def of(self, nodes: Iterable[ir.Node]) -> tuple[str, ...]:
        """The names that any of `nodes` came from, each once."""
        names: dict[str, None] = {}
        for node in nodes:
            for name in self._names.get(node) or query.origin(node):
                names[name] = None
        return tuple(names)

    def record(self, node: ir.Node, names: tuple[str, ...]) -> None:
        """Remember where a new node came from."""
        self._names[node] = names

    def forget(self, nodes: Iterable[ir.Node]) -> None:
        """Do without nodes that are gone."""
        for node in nodes:
            self._names.pop(node, None)

    def write(self) -> None:
        """Give every new node that is in a graph the names it came from, under `query.ORIGIN`."""
        for node, names in self._names.items():
            if node.graph is not None:
                node.metadata_props[query.ORIGIN] = json.dumps(names)


class Scalars:
    """Initializers of one element that rules built: what is built again, for the same purpose, is the same one."""

    def __init__(self) -> None:
        self._known: dict[tuple[ir.Graph, str, str, bytes], ir.Value] = {}

    def like(self, graph: ir.Graph, array: np.ndarray, hint: str, add: Callable[[], ir.Value]) -> ir.Value:
        """The initializer of the graph that holds what `array` does; `add` makes it where there is none."""
        key = graph, hint, array.dtype.str, array.tobytes()
        found = self._known.get(key)
        # One that nothing used any more may have been taken out since.
        if found is None or not found.is_initializer():
            found = self._known[key] = add()
        return found


def _attributes(given: Mapping[str, Attribute]) -> list[ir.Attr]:
    """Attributes as nodes have them; those that another node had are taken as they are."""
    known = [value for value in given.values() if type(value) is ir.Attr]
    return known if len(known) == len(given) else list(ir.convenience.convert_attributes(given))


class Builder:
    """Records new nodes, for one match after the other: `op.Conv(x, w, group=2)` is a Conv of `x` and `w`.

    Names derive from the root of the match, so that the same rewrite gives the same names. Every new node carries
    the metadata of the root, and in the end the names of the nodes it came from. Nothing is inferred: values that
    replace others take over their types, other new values have none.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._imports = model.opset_imports
        self._names = edit.Names(model)
        self._origins = Origins()
        self._scalars = Scalars()

    def start(self, root: ir.Node, covered: Sequence[ir.Node]) -> None:
        """Begin to replace a match, of which these are the root and all nodes."""
        assert root.graph is not None, f"{root.name!r} is in no graph"
        self._graph = root.graph
        self._base = root.name or root.op_type
        self._metadata = root.metadata_props
        self._origin = self._origins.of(covered)
        self.nodes: list[ir.Node] = []

    def forget(self, nodes: Iterable[ir.Node]) -> None:
        """Do without nodes that are gone."""
        self._origins.forget(nodes)

    def finish(self) -> None:
        """Write down in every new node where it came from."""
        self._origins.write()

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        method = functools.partial(self.node, op_type)
        # Found at once the next time.
        setattr(self, op_type, method)
        return method

    def node(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        _domain: str = "",
        _name: str | None = None,
        _attrs: Mapping[str, Attribute] = MappingProxyType({}),
        **attributes: Attribute,
    ) -> ir.Value:
        """The output of a new node; attributes may be `ir.Attr` or plain values."""
        return self._outputs((_domain, op_type), 1, inputs, {**_attrs, **attributes}, _name)[0]

    def outputs(self, op_type: str, count: int, *inputs: ir.Value | None, **attributes: Attribute) -> list[ir.Value]:
        """All outputs of a new node that has `count` of them."""
        return self._outputs(("", op_type), count, inputs, attributes)

    def like(
        self, node: ir.Node, *inputs: ir.Value | None, _dropped: Collection[str] = (), **changed: Attribute
    ) -> ir.Value:
        """The one output of a node like another, with other inputs, without some attributes and with `changed` ones."""
        kept = {name: item for name, item in node.attributes.items() if name not in _dropped}
        return self._outputs((node.domain, node.op_type), 1, inputs, {**kept, **changed})[0]

    def outputs_like(self, node: ir.Node, *inputs: ir.Value | None, **changed: Attribute) -> list[ir.Value]:
        """All outputs of a new node like another, but for its inputs and `changed` attributes."""
        attributes = {**node.attributes, **changed} if changed else node.attributes
        return self._outputs((node.domain, node.op_type), len(node.outputs), inputs, attributes)

    def _outputs(
        self,
        key: OpKey,
        count: int,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute],
        name: str | None = None,
    ) -> list[ir.Value]:
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        domain, op_type = key
        full_name = self._names.take(f"{self._base}/{name or op_type}")
        outputs = [ir.Value(name=self._names.take(f"{full_name}/output")) for _ in range(count)]
        node = ir.Node(
            domain,
            op_type,
            inputs,
            _attributes(attributes) if attributes else (),
            outputs=outputs,
            name=full_name,
            metadata_props=dict(self._metadata),
        )
        self._origins.record(node, self._origin)
        self.nodes.append(node)
        self._imports.setdefault(domain, 1)
        return outputs

    def constant(self, array: np.ndarray | ir.TensorProtocol, hint: str = "constant") -> ir.Value:
        """An initializer of the graph that the match is in; a scalar may be one that was built before."""
        if isinstance(array, np.ndarray) and array.ndim == 0:
            return self._scalars.like(self._graph, array, hint, lambda: self._initializer(array, hint))
        return self._initializer(array, hint)

    def _initializer(self, array: np.ndarray | ir.TensorProtocol, hint: str) -> ir.Value:
        return edit.add_initializer(self._graph, array, self._names.take(f"{self._base}/{hint}"))

    def needs_opset(self, opset: int) -> None:
        """Have the model import the opset that defines what is built."""
        upgrade.import_at_least(self._model, opset)

    def replace(self, old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
        """Put new values in place of old ones; those built here take over names, types and metadata."""
        named: set[ir.Value] = set()
        for before, after in zip(old, new, strict=True):
            if query.is_unused(before):
                continue  # its name and its type may be those of another
            # The second value that one new value replaces leaves it the name of the first.
            is_fresh = after not in named and after.producer() in self.nodes
            if is_fresh and not before.is_graph_output():
                edit.describe_as(after, before)
                before.name, after.name = after.name, before.name
            named.add(after)
            edit.replace_value(before, after, self._names)
