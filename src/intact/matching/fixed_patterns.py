"""Patterns without alternatives: there is nothing to search for, a plan says which node to look at next.

Most patterns are of this kind, or two of it where two operands may be swapped. A plan finds what the search of
`matcher.py` would find, for a fraction of the work.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TypeAlias

import onnx_ir as ir

from intact.matching import fitting
from intact.matching.occurrence import Bound, Match
from intact.matching.pattern import Each, Literal, NodePattern, OpKey, Output, Pattern, ValuePattern, Var
from intact.model import query

Inputs: TypeAlias = Sequence[ir.Value | None]
Spot: TypeAlias = tuple[int, int]
"""An input: the number of its node in the plan, and its position there."""


class _Look:
    """One node to look at: which input of an earlier one it writes, and what is asked of its own inputs."""

    def __init__(self, output: Output, spot: Spot, most_uses: int, is_turned: bool) -> None:
        node = output.node
        self.keys = node.keys
        self.index = output.index
        self.reader, self.position = spot
        self.most_uses = most_uses
        """The uses of the output that a match can cover, or 0 where it may have others."""
        self._pattern = node
        self._is_turned = is_turned
        self._most = sys.maxsize if any(isinstance(item, Each) for item in node.inputs) else len(node.inputs)
        self._needed = [at for at, item in enumerate(node.inputs) if _is_needed(item)]
        self._fewest = max(self._needed, default=-1) + 1
        self._tested: list[tuple[int, Var | Literal | None]] = []
        for at, item in enumerate(node.inputs):
            if item is None or isinstance(item, Literal) or (isinstance(item, Var) and item.constant):
                self._tested.append((at, item))

    def inputs(self, node: ir.Node) -> Inputs | None:
        """The inputs of the node in the order of the pattern, or None where the node itself does not match."""
        found: Inputs = node.inputs
        if self._is_turned:
            orders = fitting.orders(node, self._pattern.inputs)
            if len(orders) == 1:
                return None
            found = orders[1]
        count = len(found)
        if count < self._fewest or (count > self._most and any(value is not None for value in found[self._most :])):
            return None
        for position in self._needed:
            if found[position] is None:
                return None
        for position, item in self._tested:
            if position < count and not _passes(item, found[position]):
                return None
        fits = not self._pattern.attributes or fitting.wrong_attribute(self._pattern, node) is None
        return found if fits else None


def _is_needed(item: ValuePattern) -> bool:
    return isinstance(item, Output | Literal) or (isinstance(item, Var) and not item.optional)


def _passes(item: Var | Literal | None, value: ir.Value | None) -> bool:
    """True if a value is the constant that is wanted, or any; an input that need not be there may be absent."""
    if isinstance(item, Literal):
        return fitting.equals(item, value)
    return value is None or (item is not None and query.is_constant(value))


class Plan:
    """Finds the one match of a pattern at a node, from one of its starts and with its operands in one order."""

    def __init__(self, pattern: Pattern, start: Output, wanted: Collection[str], *, is_turned: bool = False) -> None:
        self._pattern = pattern
        self._turned = pattern.turned if is_turned else None
        self._start = start
        self._looks: list[_Look] = []
        self._slots: dict[NodePattern, int] = {}
        self._again: list[tuple[Spot, Output]] = []
        self._spots: dict[str, list[Spot]] = {}
        self._rests: list[tuple[str, Spot]] = []
        self._add(start, (0, 0))
        self._first, *self._others = self._looks
        self._patterns = tuple(self._slots)
        self._named = [(name, slot) for node, slot in self._slots.items() if (name := node.name) and name in wanted]
        self._bound = [(name, *spots[0]) for name, spots in self._spots.items() if name in wanted]
        self._equal = [spots for spots in self._spots.values() if len(spots) > 1]

    def _add(self, output: Output, spot: Spot) -> None:
        """Add the node of an output, then those before it, in the order in which a search finds them."""
        node, slot = output.node, len(self._looks)
        most_uses = 0 if node.shared else self._pattern.most_uses[node]
        self._looks.append(_Look(output, spot, most_uses, node is self._turned))
        self._slots[node] = slot
        for position, item in enumerate(node.inputs):
            if isinstance(item, Output) and item.node in self._slots:
                self._again.append(((slot, position), item))
            elif isinstance(item, Output):
                self._add(item, (slot, position))
            elif isinstance(item, Var):
                self._spots.setdefault(item.name, []).append((slot, position))
            elif isinstance(item, Each):
                self._rests.append((item.item.name, (slot, position)))  # type: ignore[union-attr]

    def match(self, root: ir.Node) -> Match | None:
        """The match with its root at a node whose type fits, or None."""
        inputs = self._first.inputs(root)
        replaced = () if inputs is None else fitting.outputs_of(self._start, root)
        if inputs is None or not replaced:
            return None
        nodes, read, graph, is_closed = [root], [inputs], root.graph, len(replaced) == len(root.outputs)
        for look in self._others:
            value = read[look.reader][look.position]
            assert value is not None, "a node is needed where another is looked for"
            node = value.producer()
            if node is None or (node.domain, node.op_type) not in look.keys or value.index() != look.index:
                return None
            if look.most_uses:
                uses = len(value.uses())
                if uses > look.most_uses or value.is_graph_output():
                    return None
                # A single use is that by the match itself.
                is_closed = is_closed and uses == 1 and len(node.outputs) == 1 and node.graph is graph
            inputs = look.inputs(node)
            if inputs is None:
                return None
            nodes.append(node)
            read.append(inputs)
        if not self._agrees(nodes, read):
            return None
        match = Match(self._bindings(nodes, read), dict(zip(self._patterns, nodes, strict=True)), (), replaced)
        return match if is_closed or match.leak() is None else None

    def _agrees(self, nodes: list[ir.Node], read: list[Inputs]) -> bool:
        """True if everything that the pattern has in several places is the same in all of them."""
        for (slot, position), output in self._again:
            value, node = read[slot][position], nodes[self._slots[output.node]]
            if value is None or value.producer() is not node or value.index() != output.index:
                return False
        for first, *others in self._equal:
            bound = _at(read, *first)
            for spot in others:
                value = _at(read, *spot)
                if value is not bound and not query.same_constant(bound, value):
                    return False
        return True

    def _bindings(self, nodes: list[ir.Node], read: list[Inputs]) -> dict[str, Bound]:
        bindings: dict[str, Bound] = {name: _at(read, slot, position) for name, slot, position in self._bound}
        for name, slot in self._named:
            bindings[name] = nodes[slot]
        for name, (slot, position) in self._rests:
            bindings[name] = tuple(read[slot][position:])
        return bindings


def _at(read: list[Inputs], slot: int, position: int) -> ir.Value | None:
    inputs = read[slot]
    return inputs[position] if position < len(inputs) else None


def plans(pattern: Pattern, wanted: Collection[str]) -> dict[OpKey, list[Plan]] | None:
    """The plans that find every match of a pattern, by the type of its root, or None where that takes a search."""
    if not pattern.is_plain and pattern.turned is None:
        return None
    found: dict[OpKey, list[Plan]] = {}
    for start in pattern.starts:
        for is_turned in (False,) if pattern.is_plain else (False, True):
            plan = Plan(pattern, start, wanted, is_turned=is_turned)
            for key in start.node.keys:
                found.setdefault(key, []).append(plan)
    return found
