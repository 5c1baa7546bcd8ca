"""Finds where a pattern fits: a backtracking search from a root node towards its inputs.

The work at one node depends on the pattern alone, never on the size of the graph: before anything is explored,
each input is tested for the op type that the pattern wants there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.graph import query
from intact.graph.pattern import SWAPPABLE, AnyOf, Each, Literal, NodePattern, Output, Pattern, ValuePattern, Var

# Beyond this, trying all orders of a Max or Sum would cost more than such a match is worth.
_MOST_PERMUTED = 4


@dataclass(slots=True)
class Match:
    """What the names of a pattern bind to, and the nodes that it covers."""

    bindings: dict[str, Any]
    nodes: dict[NodePattern, ir.Node]
    repeated: tuple[tuple[NodePattern, ir.Node], ...] = ()
    replaced: tuple[ir.Value, ...] = ()
    is_turned: bool = False
    """Whether the operands of the pattern's `turned` are looked for in the other order."""

    def bind(self, name: str, found: Any) -> Match:
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


class Matcher:
    """Finds the matches of one pattern; `failure` says what stood in the way of the one that went furthest."""

    def __init__(self, pattern: Pattern, *, explain: bool = False) -> None:
        self.pattern = pattern
        self._explain = explain
        self._failure: tuple[int, str] = (-1, "")

    @property
    def failure(self) -> str:
        """Why the deepest partial match went no further, where the matcher was made to explain."""
        return self._failure[1]

    def matches(self, root: ir.Node) -> Iterable[Match]:
        """All ways in which the pattern fits with its first root at `root`."""
        # What stands in the way is plainer where all inputs are looked at before any is explored.
        if self._explain:
            return self._search(root)
        if self.pattern.is_plain:
            return self._found_at_once(root, is_turned=False)
        return self._search(root) if self.pattern.turned is None else self._in_either_order(root)

    def _in_either_order(self, root: ir.Node) -> Iterator[Match]:
        for is_turned in (False, True):
            yield from self._found_at_once(root, is_turned)

    def _found_at_once(self, root: ir.Node, is_turned: bool) -> list[Match]:
        """The matches of a pattern without alternatives below its root: there is nothing to search for."""
        key, outputs = (root.domain, root.op_type), root.outputs
        found = []
        for start in self.pattern.starts:
            if key in start.node.keys and start.index < len(outputs):
                match = Match({}, {}, (), (outputs[start.index],), is_turned)
                if self._fits(start.node, root, match) and self._is_closed(match):
                    found.append(match)
        return found

    def _search(self, root: ir.Node) -> Iterator[Match]:
        key = (root.domain, root.op_type)
        for start in self.pattern.starts:
            if key not in start.node.keys or start.index >= len(root.outputs):
                continue
            for match in self._node(start.node, root, _EMPTY):
                for whole in self._other_roots(self.pattern.others, match) if self.pattern.others else (match,):
                    outputs = [whole.nodes[other.node].outputs[other.index :] for other in self.pattern.others]
                    if all(outputs):
                        whole.replaced = (root.outputs[start.index], *(values[0] for values in outputs))
                        if self._is_closed(whole):
                            yield whole

    def _other_roots(self, roots: tuple[Output, ...], match: Match) -> Iterator[Match]:
        if not roots:
            yield Match(match.bindings, match.nodes, match.repeated)
            return
        pattern, rest = roots[0].node, roots[1:]
        if pattern in match.nodes:
            yield from self._other_roots(rest, match)
            return
        for node in self._reachable(pattern, match):
            if node not in match.nodes.values():
                for found in self._node(pattern, node, match):
                    yield from self._other_roots(rest, found)

    def _reachable(self, pattern: NodePattern, match: Match) -> Iterator[ir.Node]:
        """Nodes that could match `pattern`: those above the first of its inputs that the match already knows."""
        for child in pattern.inputs:
            values = list(self._known(child, match))
            if values:
                users = dict.fromkeys(use.node for value in values for use in value.uses())
                yield from (user for user in users if (user.domain, user.op_type) in pattern.keys)
                return

    def _known(self, pattern: ValuePattern, match: Match) -> Iterator[ir.Value]:
        if isinstance(pattern, Var):
            bound = match.bindings.get(pattern.name)
            if isinstance(bound, ir.Value) and not query.is_constant(bound):
                yield bound
        elif isinstance(pattern, Output):
            node = match.nodes.get(pattern.node)
            nodes = self._reachable(pattern.node, match) if node is None else (node,)
            yield from (found.outputs[pattern.index] for found in nodes)

    def _node(self, pattern: NodePattern, node: ir.Node, match: Match) -> Iterator[Match]:
        """Match a node whose type is known to fit."""
        if pattern in self.pattern.plain:
            only = Match(dict(match.bindings), dict(match.nodes), match.repeated)
            if self._fits(pattern, node, only):
                yield only
            return
        wanted = pattern.inputs
        covered: Match | None = None
        for inputs in _orders(node, wanted):
            if not self._all_plausible(wanted, inputs, match):
                continue
            if covered is None:
                if pattern.attributes and not self._attributes_fit(pattern, node, match):
                    return
                covered = match.cover(pattern, node)
            yield from self._inputs(wanted, inputs, covered)

    def _fits(self, pattern: NodePattern, node: ir.Node, match: Match) -> bool:
        """Whether a node matches a pattern without alternatives, which it can in one way only: `match` is filled in."""
        values: Sequence[ir.Value | None] = node.inputs
        if match.is_turned and pattern is self.pattern.turned:
            orders = _orders(node, pattern.inputs)
            if len(orders) == 1:
                return False
            values = orders[1]
        if self._explain and not self._all_plausible(pattern.inputs, values, match):
            return False
        if pattern.attributes and not self._attributes_fit(pattern, node, match):
            return False
        match.nodes[pattern] = node
        if pattern.name is not None:
            match.bindings[pattern.name] = node
        count = len(values)
        for index, item in enumerate(pattern.inputs):
            value = values[index] if index < count else None
            if type(item) is Output:
                if value is None or not self._output_fits(item, value, match):
                    return False
            elif type(item) is Each:
                match.bindings[item.item.name] = tuple(values[index:])  # type: ignore[union-attr]
                return True
            elif not self._value_fits(item, value, match):
                return False
        return count <= len(pattern.inputs) or all(value is None for value in values[len(pattern.inputs) :])

    def _value_fits(self, pattern: ValuePattern, value: ir.Value | None, match: Match) -> bool:
        """Whether a value matches a pattern without alternatives that is not of a node."""
        if type(pattern) is Var:
            if value is None:
                if not pattern.optional:
                    return False
            elif pattern.constant and not query.is_constant(value):
                return False
            bindings, name = match.bindings, pattern.name
            if name not in bindings:
                bindings[name] = value
                return True
            return bindings[name] is value or self._same(pattern, bindings[name], value, match)
        if type(pattern) is Literal and not _equals(pattern, value):
            self._expected(match, pattern, value)
            return False
        return pattern is not None or value is None

    def _output_fits(self, pattern: Output, value: ir.Value, match: Match) -> bool:
        wanted, node = pattern.node, value.producer()
        if node is None or (node.domain, node.op_type) not in wanted.keys or value.index() != pattern.index:
            return False
        if match.nodes.get(wanted) is node:
            return True
        return self._is_free(pattern, value, match) and self._fits(wanted, node, match)

    def _attributes_fit(self, pattern: NodePattern, node: ir.Node, match: Match) -> bool:
        for name, wanted in pattern.attributes:
            attribute = node.attributes.get(name)
            found = None if attribute is None else attribute.value
            fits = wanted(found) if callable(wanted) else _plain(found) == _plain(wanted)
            if not fits:
                expected = "another value" if callable(wanted) else repr(wanted)
                self._fail(match, f"{node.op_type} {node.name!r}: expected {name} = {expected}, found {found!r}")
                return False
        return True

    def _all_plausible(self, patterns: Sequence[ValuePattern], values: Sequence[ir.Value | None], match: Match) -> bool:
        count = len(values)
        for index, pattern in enumerate(patterns):
            if type(pattern) is Each:
                return True
            value = values[index] if index < count else None
            if not _plausible(pattern, value):
                if self._explain:
                    self._expected(match, pattern, value)
                return False
        for value in values[len(patterns) :]:
            if value is not None:
                if self._explain:
                    self._expected(match, None, value)
                return False
        return True

    def _inputs(
        self, patterns: Sequence[ValuePattern], values: Sequence[ir.Value | None], match: Match
    ) -> Iterator[Match]:
        """Match one input after the other; wildcards, which match in one way at most, are bound in one go."""
        bindings = match.bindings
        for index, pattern in enumerate(patterns):
            value = values[index] if index < len(values) else None
            if type(pattern) is Var:
                if pattern.name not in bindings:
                    bindings = dict(bindings) if bindings is match.bindings else bindings
                    bindings[pattern.name] = value
                elif not self._same(pattern, bindings[pattern.name], value, match):
                    return
            elif pattern is not None:
                so_far = Match(bindings, match.nodes, match.repeated)
                if type(pattern) is Each:
                    yield from self._each(pattern, values[index:], so_far)
                    return
                for found in self._value(pattern, value, so_far):
                    yield from self._inputs(patterns[index + 1 :], values[index + 1 :], found)
                return
        yield Match(bindings, match.nodes, match.repeated)

    def _value(self, pattern: ValuePattern, value: ir.Value | None, match: Match) -> Iterator[Match]:
        """Match a value that is known to be plausible."""
        if type(pattern) is Var:
            yield from self._var(pattern, value, match)
        elif type(pattern) is Output and value is not None:
            yield from self._output(pattern, value, match)
        elif type(pattern) is AnyOf:
            for option in pattern.options:
                if _plausible(option, value):
                    yield from self._value(option, value, match)
        elif type(pattern) is Literal and not _equals(pattern, value):
            self._expected(match, pattern, value)
        else:
            yield match

    def _var(self, var: Var, value: ir.Value | None, match: Match) -> Iterator[Match]:
        if var.name not in match.bindings:
            yield match.bind(var.name, value)
        elif self._same(var, match.bindings[var.name], value, match):
            yield match

    def _same(self, var: Var, bound: Any, value: ir.Value | None, match: Match) -> bool:
        """Whether a name that is bound already may stand for the value, too."""
        if bound is value or query.same_constant(bound, value):
            return True
        if self._explain:
            found = f"{query.describe(bound)} and {query.describe(value)}"
            self._fail(match, f"expected the same value or equal constants for {var.name!r}, found {found}")
        return False

    def _output(self, pattern: Output, value: ir.Value, match: Match) -> Iterator[Match]:
        node = _producer(value)
        if match.nodes.get(pattern.node) is node:
            yield match
        elif self._is_free(pattern, value, match):
            yield from self._node(pattern.node, node, match)

    def _is_free(self, pattern: Output, value: ir.Value, match: Match) -> bool:
        """Whether the pattern does not stand for another node already, and nothing else needs what it stands for."""
        if pattern.node in match.nodes:
            self._expected(match, pattern, value)
            return False
        if not pattern.node.shared and self._has_too_many_uses(pattern.node, value):
            if self._explain:
                self._fail(match, f"{query.describe(value)} has other uses")
            return False
        return True

    def _has_too_many_uses(self, pattern: NodePattern, value: ir.Value) -> bool:
        """Whether no match can cover all uses; cuts the search short, `_is_closed` decides."""
        if self.pattern.others:
            return False
        return len(value.uses()) > self.pattern.most_uses[pattern] or value.is_graph_output()

    def _each(self, pattern: Each, values: Sequence[ir.Value | None], match: Match) -> Iterator[Match]:
        """Match every value with the same item; the first way to match each one counts."""
        local = self.pattern.local[pattern]
        if not values:
            yield Match({**match.bindings, **dict.fromkeys(local, ())}, match.nodes, match.repeated)
            return
        item = pattern.item
        if type(item) is Var and item.optional and not item.constant and item.name in local:
            yield match.bind(item.name, tuple(values))
            return
        collected: dict[str, list[Any]] = {name: [] for name in sorted(local)}
        inside = match
        for value in values:
            found = next(self._value(pattern.item, value, inside), None) if _plausible(pattern.item, value) else None
            if found is None:
                self._expected(match, pattern, value)
                return
            for name, bound in collected.items():
                bound.append(found.bindings.get(name))
            outer = {name: bound for name, bound in found.bindings.items() if name not in local}
            fresh = tuple((item, node) for item, node in found.nodes.items() if item not in match.nodes)
            inside = Match(outer, match.nodes, (*found.repeated, *fresh))
        bindings = {**inside.bindings, **{name: tuple(bound) for name, bound in collected.items()}}
        yield Match(bindings, inside.nodes, inside.repeated)

    def _is_closed(self, match: Match) -> bool:
        """Whether no value that the rewrite would take away is used from outside of the match."""
        replaced, covered = match.replaced, match.covered()
        graph = _producer(replaced[0]).graph
        for pattern, node in match.pairs():
            outputs = node.outputs
            if pattern.shared and not any(output in replaced for output in outputs):
                continue
            if node.graph is not graph:
                self._fail(match, f"{node.op_type} {node.name!r} is outside of this body")
                return False
            for output in outputs:
                if output not in replaced and _used_outside(output, covered):
                    self._fail(match, f"{node.op_type} {node.name!r} has other uses")
                    return False
        return True

    def _expected(self, match: Match, pattern: ValuePattern, value: ir.Value | None) -> None:
        if self._explain:
            wanted = "nothing" if pattern is None else str(pattern)
            self._fail(match, f"expected {wanted}, found {query.describe(value)}")

    def _fail(self, match: Match, reason: str) -> None:
        if self._explain and len(match.nodes) > self._failure[0]:
            self._failure = (len(match.nodes), reason)


_EMPTY = Match({}, {})


def _producer(value: ir.Value) -> ir.Node:
    producer = value.producer()
    assert producer is not None, "only the output of a node is plausible here"
    return producer


def _used_outside(value: ir.Value, covered: tuple[ir.Node, ...]) -> bool:
    return value.is_graph_output() or any(use.node not in covered for use in value.uses())


def _plausible(pattern: ValuePattern, value: ir.Value | None) -> bool:
    """Whether the value could match, by a look at its producer alone."""
    if type(pattern) is Output:
        producer = None if value is None else value.producer()
        if value is None or producer is None:
            return False
        return (producer.domain, producer.op_type) in pattern.node.keys and value.index() == pattern.index
    if type(pattern) is Var:
        return pattern.optional if value is None else not pattern.constant or query.is_constant(value)
    if type(pattern) is Literal:
        return query.is_constant(value)
    if type(pattern) is AnyOf:
        return any(_plausible(option, value) for option in pattern.options)
    return value is None


def _equals(literal: Literal, value: ir.Value | None) -> bool:
    """Whether a constant holds the literal, rounded to the constant's own dtype if that is a float."""
    array = query.constant(value)
    if array is None or array.size != literal.array.size or array.dtype.kind in "OSU":
        return False
    if array.size != 1 and array.shape != literal.array.shape:
        return False
    rounded = literal.array if array.dtype.kind in "iub" else literal.array.astype(array.dtype)
    wanted = rounded.astype(np.float64).reshape(-1)
    found = array.astype(np.float64).reshape(-1)
    return bool(np.all(np.abs(found - wanted) <= literal.rtol * np.abs(wanted)))


def _orders(node: ir.Node, wanted: Sequence[ValuePattern]) -> Sequence[Sequence[ir.Value | None]]:
    """The inputs of the node in every order that means the same."""
    inputs = node.inputs
    size = SWAPPABLE.get((node.domain, node.op_type), 0)
    if size == 0 or (wanted and type(wanted[-1]) is Each):
        return (inputs,)
    if size == 1 and 2 < len(inputs) <= _MOST_PERMUTED:
        return tuple(itertools.permutations(inputs))
    left, right, rest = inputs[:size], inputs[size : 2 * size], inputs[2 * size :]
    if left == right or (size == 1 and rest):
        return (inputs,)
    return (inputs, (*right, *left, *rest))


def _plain(attribute: Any) -> Any:
    return tuple(attribute) if isinstance(attribute, Sequence) and not isinstance(attribute, str) else attribute
