"""Builds the nodes that a rule puts in place of a match."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.graph import edit, query, upgrade


class Origins:
    """From which nodes of the given model each new node came; most are gone before `write` puts that down."""

    def __init__(self) -> None:
        self._names: dict[ir.Node, tuple[str, ...]] = {}

    def of(self, nodes: Iterable[ir.Node]) -> tuple[str, ...]:
        """The names that any of `nodes` came from, each once."""
        names: dict[str, None] = {}
        for node in nodes:
            names.update(dict.fromkeys(self._names.get(node) or query.origin(node)))
        return tuple(names)

    def record(self, node: ir.Node, names: tuple[str, ...]) -> None:
        """Remember where a new node came from."""
        self._names[node] = names

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


def _attributes(given: Mapping[str, Any]) -> list[ir.Attr]:
    """Attributes as nodes have them; those that another node had are taken as they are."""
    if all(type(value) is ir.Attr for value in given.values()):
        return list(given.values())
    return list(ir.convenience.convert_attributes(given))


class Builder:
    """Records new nodes: `op.Conv(x, w, group=2)` is a Conv of `x` and `w`.

    Names derive from the root of the match, so that the same rewrite gives the same names. Every new node carries
    the metadata of the root, and `origins` know the nodes it came from. Nothing is inferred: values that replace
    others take over their types, other new values have none.
    """

    def __init__(
        self,
        model: ir.Model,
        root: ir.Node,
        covered: Sequence[ir.Node],
        names: edit.Names,
        origins: Origins,
        scalars: Scalars,
    ) -> None:
        assert root.graph is not None, f"{root.name!r} is in no graph"
        self._model = model
        self._graph = root.graph
        self._base = root.name or root.op_type
        self._names = names
        self._metadata = root.metadata_props
        self._origins = origins
        self._scalars = scalars
        self._origin = origins.of(covered)
        self.nodes: list[ir.Node] = []

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return functools.partial(self.node, op_type)

    def node(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        _domain: str = "",
        _name: str | None = None,
        _outputs: int = 1,
        **attributes: Any,
    ) -> Any:
        """A new node; more than one of `_outputs` gives a tuple. Attributes may be `ir.Attr` or plain values."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        name = self._names.take(f"{self._base}/{_name or op_type}")
        node = ir.Node(
            _domain,
            op_type,
            inputs,
            _attributes(attributes) if attributes else (),
            num_outputs=_outputs,
            name=name,
            metadata_props=dict(self._metadata),
        )
        for output in node.outputs:
            output.name = self._names.take(f"{name}/output")
        self._origins.record(node, self._origin)
        self.nodes.append(node)
        self._model.opset_imports.setdefault(_domain, 1)
        return node.outputs[0] if _outputs == 1 else tuple(node.outputs)

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
            # The second value that one new value replaces leaves it the name of the first.
            is_fresh = after not in named and after.producer() in self.nodes
            if is_fresh and not before.is_graph_output():
                edit.describe_as(after, before)
                before.name, after.name = after.name, before.name
            named.add(after)
            edit.replace_value(before, after, self._names)
