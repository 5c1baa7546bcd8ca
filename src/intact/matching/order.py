"""The positions of nodes in their graphs, for matches with several roots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from intact.matching.occurrence import Match, producer
from intact.model import query


class Order:
    """The position of every node, kept up to date through rewrites.

    A node owns the span (position - width, position]. Nodes put before it share its span out among themselves, so
    that no other position changes; where a span gets too narrow, all nodes are counted again. Nothing is counted
    before the first question.
    """

    # Positions below 2^24 are still apart by this much in a float.
    NARROWEST = 2.0**-26

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._spans: dict[ir.Node, tuple[float, float]] = {}

    def _count(self) -> None:
        self._spans = {node: (float(index), 1.0) for index, node in enumerate(query.all_nodes(self._model))}

    def first_root(self, match: Match) -> ir.Node:
        """The root of the match that stands first: what replaces them all goes before it."""
        return min((producer(value) for value in match.replaced), key=self._position)

    def doubt(self, match: Match) -> str | None:
        """Refuse a match that reads something computed after its first root, where the replacement has to stand."""
        first = self.first_root(match)
        for value in _read(match):
            source = value.producer()
            if source is None or source.graph is not first.graph:
                continue
            if self._position(source) >= self._position(first):
                return f"{value.name!r} is computed after {first.name!r}, which is to be merged with what needs it"
        return None

    def insert_before(self, place: ir.Node, nodes: Sequence[ir.Node]) -> None:
        """Record that `nodes` now stand before `place`, in their order."""
        if not self._spans:
            return
        position, width = self._span(place)
        share = width / (len(nodes) + 1)
        if share < self.NARROWEST:
            self._count()
            return
        self._spans[place] = (position, share)
        for distance, node in enumerate(reversed(nodes), start=1):
            self._spans[node] = (position - distance * share, share)

    def _position(self, node: ir.Node) -> float:
        return self._span(node)[0]

    def _span(self, node: ir.Node) -> tuple[float, float]:
        """The span of the node; one that is not known yet was appended at the end of its graph."""
        if not self._spans:
            self._count()
        if node not in self._spans:
            self._spans[node] = (float(len(self._spans)), 1.0)
        return self._spans[node]


def _read(match: Match) -> Iterator[ir.Value]:
    """The values that new nodes could read: what comes into the match, and the outputs of its shared nodes."""
    covered = set(match.covered())
    for pattern, node in match.pairs():
        yield from (value for value in node.inputs if value is not None and value.producer() not in covered)
        if pattern.shared:
            yield from node.outputs
