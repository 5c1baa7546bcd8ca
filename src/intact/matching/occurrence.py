"""A place where a pattern fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import onnx_ir as ir

from intact.matching.pattern import NodePattern
from intact.records import dataclass

Bound: TypeAlias = ir.Value | ir.Node | tuple["Bound", ...] | None
"""The node or value behind a name, None for an absent input, or one of these for each of several inputs."""


@dataclass(slots=True)
class Match:
    """The bindings of a pattern's names, and the nodes that it covers."""

    bindings: dict[str, Bound]
    nodes: dict[NodePattern, ir.Node]
    repeated: tuple[tuple[NodePattern, ir.Node], ...] = ()
    replaced: tuple[ir.Value, ...] = ()

    def bind(self, name: str, found: Bound) -> Match:
        """The same match with one more name."""
        return Match({**self.bindings, name: found}, self.nodes, self.repeated)

    def cover(self, pattern: NodePattern, node: ir.Node) -> Match:
        """The same match with one more node."""
        bindings = self.bindings if pattern.name is None else {**self.bindings, pattern.name: node}
        return Match(bindings, {**self.nodes, pattern: node}, self.repeated)

    def pairs(self) -> Iterable[tuple[NodePattern, ir.Node]]:
        """Every pattern of a node with the node it covers, the root first."""
        return (*self.nodes.items(), *self.repeated) if self.repeated else self.nodes.items()

    def covered(self) -> tuple[ir.Node, ...]:
        """The nodes that the match covers, each once, the root first."""
        if self.repeated:
            return tuple(dict.fromkeys(node for _, node in self.pairs()))
        return tuple(dict.fromkeys(self.nodes.values()))

    def leak(self) -> str | None:
        """Find a use outside of the match of a value that would be gone."""
        replaced, covered = self.replaced, self.covered()
        roots = [producer(value) for value in replaced]
        for pattern, node in self.pairs():
            if pattern.shared and node not in roots:
                continue
            if node.graph is not roots[0].graph:
                return f"{node.op_type} {node.name!r} is outside of this body"
            for output in node.outputs:
                if output not in replaced and _used_outside(output, covered):
                    return f"{node.op_type} {node.name!r} has other uses"
        return None


def producer(value: ir.Value) -> ir.Node:
    """The node that writes a value which is known to come from one."""
    found = value.producer()
    assert found is not None, f"{value.name!r} is not the output of a node"
    return found


def _used_outside(value: ir.Value, covered: tuple[ir.Node, ...]) -> bool:
    return value.is_graph_output() or any(user not in covered for user, _ in value.uses())
