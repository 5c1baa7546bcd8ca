"""Finds where a pattern fits: a backtracking search from a root node towards its inputs.

The work at one node depends on the pattern alone, never on the size of the graph: before anything is explored,
each input is tested for the op type that the pattern wants there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from intact.matching import fitting
from intact.matching.fixed_patterns import plans
from intact.matching.occurrence import Bound, Match, producer
from intact.matching.pattern import AnyOf, Each, Literal, NodePattern, Output, Pattern, ValuePattern, Var
from intact.model import query


class Matcher:
    """Finds the matches of one pattern; `failure` says what stood in the way of the one that went furthest."""

    def __init__(self, pattern: Pattern, *, wanted: Collection[str] | None = None, explain: bool = False) -> None:
        """`wanted` are the names that a match has to bind, all of them where it is None."""
        self.pattern = pattern
        self._explain = explain
        self._failure: tuple[int, str] = (-1, "")
        # What stands in the way is plainer where all inputs are looked at before any is explored.
        self._plans = None if explain else plans(pattern, pattern.names if wanted is None else wanted)

    @property
    def failure(self) -> str:
        """The obstacle of the partial match that went furthest, where the matcher was made to explain."""
        return self._failure[1]

    def matches(self, root: ir.Node) -> Iterable[Match]:
        """All ways in which the pattern fits with its first root at `root`."""
        if self._plans is None:
            return self._search(root)
        found = self._plans.get((root.domain, root.op_type), ())
        if len(found) == 1:
            only = found[0].match(root)
            return () if only is None else (only,)
        return (match for plan in found if (match := plan.match(root)) is not None)

    def _search(self, root: ir.Node) -> Iterator[Match]:
        key = (root.domain, root.op_type)
        for start in self.pattern.starts:
            replaced = fitting.outputs_of(start, root)
            if key not in start.node.keys or not replaced:
                continue
            for match in self._node(start.node, root, _EMPTY):
                for whole in self._other_roots(self.pattern.others, match) if self.pattern.others else (match,):
                    others = [fitting.outputs_of(other, whole.nodes[other.node]) for other in self.pattern.others]
                    if all(others):
                        whole.replaced = sum(others, replaced)
                        leak = whole.leak()
                        if leak is None:
                            yield whole
                        else:
                            self._fail(whole, leak)

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
            yield from (value for found in nodes for value in fitting.outputs_of(pattern, found))

    def _node(self, pattern: NodePattern, node: ir.Node, match: Match) -> Iterator[Match]:
        """Match a node whose type is known to fit."""
        wanted = pattern.inputs
        covered: Match | None = None
        for inputs in fitting.orders(node, wanted):
            if not self._all_plausible(wanted, inputs, match):
                continue
            if covered is None:
                wrong = fitting.wrong_attribute(pattern, node)
                if wrong is not None:
                    self._fail(match, wrong)
                    return
                covered = match.cover(pattern, node)
            yield from self._inputs(wanted, inputs, covered)

    def _all_plausible(self, patterns: Sequence[ValuePattern], values: Sequence[ir.Value | None], match: Match) -> bool:
        count = len(values)
        for index, pattern in enumerate(patterns):
            if type(pattern) is Each:
                return True
            value = values[index] if index < count else None
            if not fitting.plausible(pattern, value):
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
                if fitting.plausible(option, value):
                    yield from self._value(option, value, match)
        elif type(pattern) is Literal and not fitting.equals(pattern, value):
            self._expected(match, pattern, value)
        else:
            yield match

    def _var(self, var: Var, value: ir.Value | None, match: Match) -> Iterator[Match]:
        if var.name not in match.bindings:
            yield match.bind(var.name, value)
        elif self._same(var, match.bindings[var.name], value, match):
            yield match

    def _same(self, var: Var, bound: Bound, value: ir.Value | None, match: Match) -> bool:
        """True if a name that is bound already may stand for the value, too."""
        assert bound is None or isinstance(bound, ir.Value), f"{var.name!r} stands for values elsewhere in the pattern"
        if bound is value or query.same_constant(bound, value):
            return True
        if self._explain:
            found = f"{query.describe(bound)} and {query.describe(value)}"
            self._fail(match, f"expected the same value or equal constants for {var.name!r}, found {found}")
        return False

    def _output(self, pattern: Output, value: ir.Value, match: Match) -> Iterator[Match]:
        node = producer(value)
        if match.nodes.get(pattern.node) is node:
            yield match
        elif self._is_free(pattern, value, match):
            yield from self._node(pattern.node, node, match)

    def _is_free(self, pattern: Output, value: ir.Value, match: Match) -> bool:
        """True if the pattern does not stand for another node already, and nothing else needs what it stands for."""
        if pattern.node in match.nodes:
            self._expected(match, pattern, value)
            return False
        if not pattern.node.shared and self._has_too_many_uses(pattern.node, value):
            if self._explain:
                self._fail(match, f"{query.describe(value)} has other uses")
            return False
        return True

    def _has_too_many_uses(self, pattern: NodePattern, value: ir.Value) -> bool:
        """True if no match can cover all uses; cuts the search short, `Match.leak` decides."""
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
        collected: dict[str, list[Bound]] = {name: [] for name in sorted(local)}
        inside = match
        for value in values:
            found = next(self._value(item, value, inside), None) if fitting.plausible(item, value) else None
            if found is None:
                self._expected(match, pattern, value)
                return
            for name, bound in collected.items():
                bound.append(found.bindings.get(name))
            outer = {name: bound for name, bound in found.bindings.items() if name not in local}
            fresh = tuple(pair for pair in found.nodes.items() if pair[0] not in match.nodes)
            inside = Match(outer, match.nodes, (*found.repeated, *fresh))
        bindings = {**inside.bindings, **{name: tuple(bound) for name, bound in collected.items()}}
        yield Match(bindings, inside.nodes, inside.repeated)

    def _expected(self, match: Match, pattern: ValuePattern, value: ir.Value | None) -> None:
        if self._explain:
            wanted = "nothing" if pattern is None else str(pattern)
            self._fail(match, f"expected {wanted}, found {query.describe(value)}")

    def _fail(self, match: Match, reason: str) -> None:
        if self._explain and len(match.nodes) > self._failure[0]:
            self._failure = (len(match.nodes), reason)


_EMPTY = Match({}, {})
