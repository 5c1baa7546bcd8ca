"""Builds the nodes that a rule puts in place of a match."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.graph import edit, query, upgrade


class Builder:
    """Records new nodes: `op.Conv(x, w, group=2)` is a Conv of `x` and `w`.

    Names derive from the root of the match, so that the same rewrite gives the same names. Every new node carries
    the metadata of the root, and the names of the nodes it came from under `query.ORIGIN`. Nothing is inferred:
    values that replace others take over their types, other new values have none.
    """

    def __init__(self, model: ir.Model, root: ir.Node, covered: Sequence[ir.Node], names: edit.Names) -> None:
        assert root.graph is not None, f"{root.name!r} is in no graph"
        self._model = model
        self._graph = root.graph
        self._base = root.name or root.op_type
        self._names = names
        self._root = root
        self._covered = covered
        self.nodes: list[ir.Node] = []

    @functools.cached_property
    def _metadata(self) -> dict[str, str]:
        origins = dict.fromkeys(name for node in self._covered for name in query.origin(node))
        return {**self._root.metadata_props, query.ORIGIN: json.dumps(list(origins))}

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
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        name = self._names.take(f"{self._base}/{_name or op_type}")
        node = ir.Node(
            _domain,
            op_type,
            given,
            ir.convenience.convert_attributes(attributes) if attributes else (),
            num_outputs=_outputs,
            name=name,
            metadata_props=dict(self._metadata),
        )
        for output in node.outputs:
            output.name = self._names.take(f"{name}/output")
        self.nodes.append(node)
        self._model.opset_imports.setdefault(_domain, 1)
        return node.outputs[0] if _outputs == 1 else tuple(node.outputs)

    def constant(self, array: np.ndarray | ir.TensorProtocol, hint: str = "constant") -> ir.Value:
        """A new initializer of the graph that the match is in."""
        return edit.add_initializer(self._graph, array, self._names.take(f"{self._base}/{hint}"))

    def needs_opset(self, opset: int) -> None:
        """Have the model import the opset that defines what is built."""
        upgrade.import_at_least(self._model, opset)

    def replace(self, old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
        """Put new values in place of old ones; those built here take over names, types and metadata."""
        built = dict.fromkeys(output for node in self.nodes for output in node.outputs)
        for before, after in zip(old, new, strict=True):
            if after in built and not before.is_graph_output():
                edit.describe_as(after, before)
                before.name, after.name = after.name, before.name
            # The second value that one new value replaces leaves it the name of the first.
            built.pop(after, None)
            edit.replace_value(before, after, self._names)
