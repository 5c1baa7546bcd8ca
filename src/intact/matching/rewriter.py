"""Rules, and the engine that applies them to a fixpoint.

A rule reads in the order match, doubt, replace: `pattern` says where it could fire, `check` gives a reason not to,
`rewrite` builds what comes instead. Rules are indexed by the op types at their root and before it, so that a rule
costs nothing where it cannot match. After a rewrite only the nodes behind it whose match could reach it are visited
again; what such visits leave out has its turn in sweeps at the end, the last of which fires nothing.
"""

from __future__ import annotations

import copy
import enum
import inspect
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeAlias

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.index import PatternIndex
from intact.matching.matcher import Matcher
from intact.matching.occurrence import Match
from intact.matching.order import Order
from intact.matching.pattern import OpKey, Pattern, Patterns, Roots
from intact.model import edit, query
from intact.model.garbage_pause import no_collection
from intact.records import dataclass
from intact.results import Application, Refusal


class Exactness(enum.StrEnum):
    """The claim of a rule about the numbers after it, given the same inputs."""

    EXACT = "exact"
    WITHIN_ONE_STEP = "within one step"
    BOUNDED = "bounded"
    NEAR = "near"


EXACT = Exactness.EXACT
WITHIN_ONE_STEP = Exactness.WITHIN_ONE_STEP
BOUNDED = Exactness.BOUNDED
NEAR = Exactness.NEAR

Replacement: TypeAlias = ir.Value | Sequence[ir.Value]
"""One value for each root of a pattern."""


def snake_case(name: str) -> str:
    """`FoldScale` as `fold_scale`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Rule:
    """A rewrite of one pattern; its docstring is an equation.

    `pattern` builds the pattern with `op` (see `pattern.py`). `check` and `rewrite` get what its names bound to,
    as many of them as they ask for. `check` returns None to go ahead, or the reason why the rule may not fire.
    `rewrite` builds new nodes with `op` and returns one value for each that the pattern returned.
    """

    name: str
    """The name in reports: that of the class in snake case, unless it is set."""

    exactness: Exactness

    creates: tuple[OpKey, ...] = ()
    """Op types that the rule brings into a graph that may not have had them, for a target that lacks one."""

    replaces: tuple[OpKey, ...] = ()
    """Op types that the rule takes out of a graph, for a target with an NPU that lacks all of them."""

    is_local: ClassVar[bool] = False
    """True if `check` asks about the match and what comes just before it only, so that no other change matters."""

    is_rare: ClassVar[bool] = False
    """True if it is used only where a target with an NPU says that it has what the rule creates."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = snake_case(cls.__name__)

    spared: Mapping[str, str] = MappingProxyType({})
    """Nodes that the rule leaves alone, by name, and why: see `sparing`."""

    @classmethod
    def variants(cls) -> tuple[Self, ...]:
        """The rules that the class stands for: one, unless it is the common form of the rows of a table."""
        return (cls(),)

    def sparing(self, nodes: Mapping[str, str]) -> Self:
        """The same rule, which leaves these nodes alone, for the reasons given."""
        result = copy.copy(self)
        result.spared = {**self.spared, **nodes}
        return result

    def pattern(self, op: Patterns, *args: Any, **kwargs: Any) -> Roots:
        """The values that the rule replaces."""
        raise NotImplementedError(f"{type(self).__name__}.pattern")

    def check(self, *args: Any, **kwargs: Any) -> str | None:
        """Return the reason why the rule may not fire on this match, or None if it may."""
        return None

    def rewrite(self, op: Builder, *args: Any, **kwargs: Any) -> Replacement:
        """Build the replacement of the values of the pattern."""
        raise NotImplementedError(f"{type(self).__name__}.rewrite")


class LocalRule(Rule):
    """A rule that need not be asked again unless something changes in its match or just before it."""

    is_local = True


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model after rewriting, with every application in order and every refusal that still stands."""

    model: ir.Model
    applications: tuple[Application, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    attempts: int = 0
    """The number of times that a rule was tried at a node."""


@dataclass(frozen=True, slots=True, eq=False)
class Firing:
    """A rule about to replace values of a graph, while the nodes of the match and the new ones are all there."""

    application: Application
    graph: ir.Graph
    covered: tuple[ir.Node, ...]
    created: tuple[ir.Node, ...]
    old: tuple[ir.Value, ...]
    new: tuple[ir.Value, ...]


Watch: TypeAlias = Callable[[Firing], None]


def apply(model: ir.Model, rules: Iterable[Rule], *, watch: Watch | None = None) -> Rewritten:
    """Apply `rules` to `model`, in place, until none of them can fire; `watch` is told before each replacement."""
    with no_collection():
        return _Engine(model, rules, watch).run()


def could_fire(model: ir.Model, rules: Iterable[Rule]) -> bool:
    """True if a rule matches somewhere in `model` and has no doubt; where none does, `apply` changes nothing."""
    index = _indexed(tuple(rules))
    return any(
        prepared.check(match) is None
        for node in query.all_nodes(model)
        for prepared in index.candidates(node)
        for match in prepared.matcher.matches(node)
    )


class PreparedRule:
    """A rule with its pattern built; the arguments of its methods and its matcher are found out at the first match."""

    def __init__(self, rule: Rule, *, explain: bool = False) -> None:
        self.rule = rule
        self.pattern = Pattern(rule.pattern)
        self._explain = explain

    @cached_property
    def matcher(self) -> Matcher:
        """Finds the matches of the pattern."""
        wanted = {*self._check_names, *self._rewrite_names}
        return Matcher(self.pattern, wanted=wanted, explain=self._explain)

    @cached_property
    def _check_names(self) -> tuple[str, ...]:
        return _wanted(self.rule.check, self.pattern.names)

    @cached_property
    def _rewrite_names(self) -> tuple[str, ...]:
        return _wanted(self.rule.rewrite, self.pattern.names)

    def check(self, match: Match) -> str | None:
        bindings = match.bindings
        if self.rule.spared and (found := self.rule.spared.get(match.covered()[0].name or "")) is not None:
            return found
        return self.rule.check(**{name: bindings.get(name) for name in self._check_names})

    def rewrite(self, op: Builder, match: Match) -> tuple[ir.Value, ...]:
        result = self.rule.rewrite(op, **{name: match.bindings.get(name) for name in self._rewrite_names})
        values = tuple(result) if isinstance(result, tuple | list) else (result,)
        assert len(values) == len(match.replaced), (
            f"{self.rule.name} returned {len(values)} values for a pattern of {len(match.replaced)}"
        )
        return values


# Rules have no state, and preparing a large one takes milliseconds.
_prepared = lru_cache(maxsize=1024)(PreparedRule)


@lru_cache(maxsize=16)
def _indexed(rules: tuple[Rule, ...]) -> PatternIndex[PreparedRule]:
    """Rules by the types that their patterns start at; an optimizer applies the same ones time and again."""
    return PatternIndex([_prepared(rule) for rule in rules])


def _wanted(method: Callable[..., object], names: frozenset[str]) -> tuple[str, ...]:
    parameters = inspect.signature(method).parameters
    takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    return tuple(sorted(names if takes_all else names & parameters.keys()))


def _assert_independent(rule: Rule, nodes: Sequence[ir.Node], match: Match) -> None:
    for node in nodes:
        for value in match.replaced:
            assert value not in node.inputs, f"{rule.name}: a new node reads a value that it replaces"


class _Engine:
    """One run of rules over a model: a queue of nodes to visit, and what has happened so far."""

    # A value with more uses than this does not spread a visit at once; a sweep sees to its users.
    MOST_SPREAD = 16
    # Removed nodes that may wait: with more, they are freed before others are made.
    MOST_REMAINS = 1000

    def __init__(self, model: ir.Model, rules: Iterable[Rule], watch: Watch | None = None) -> None:
        given = tuple(rules)
        prepared = [_prepared(rule) for rule in given]
        self.model = model
        self.watch = watch
        self.index = _indexed(given)
        self.reach = max((item.pattern.depth for item in prepared), default=0)
        self.builder = Builder(model)
        self.order = Order(model)
        self.queue: deque[ir.Node] = deque()
        self.queued: set[ir.Node] = set()
        self.far = frozenset(key for item in prepared if not item.rule.is_local for key in item.pattern.keys)
        self.left_out: dict[ir.Node, None] = {}
        self.wide: set[ir.Value] = set()
        self.remains = edit.Remains()
        self.untouched: set[ir.Node] = set()
        self.applications: list[Application] = []
        self.refusals: dict[ir.Node, dict[str, str]] = {}
        self.attempts = 0
        self.limit = 0

    def run(self) -> Rewritten:
        """Visit every node, then those that a change could concern, until nothing changes."""
        nodes = list(query.all_nodes(self.model))
        self.limit = 1000 + 10 * len(nodes)
        self.untouched = set(nodes)
        try:
            while self._sweep(nodes):
                nodes = self._left_out()
        finally:
            self.remains.take_out()
        self.builder.finish()
        return Rewritten(self.model, tuple(self.applications), self._standing_refusals(), self.attempts)

    def _sweep(self, nodes: list[ir.Node]) -> bool:
        """Visit nodes, and those that a change on the way could concern; return whether a rule fired."""
        done = len(self.applications)
        self.queue.extend(nodes)
        self.queued.update(self.queue)
        nodes.clear()
        while self.queue:
            node = self.queue.popleft()
            self.queued.discard(node)
            self.untouched.discard(node)
            if node.graph is not None and node not in self.remains.nodes:
                self._visit(node)
            if len(self.remains.nodes) > self.MOST_REMAINS:
                self._forget_removed()
        return len(self.applications) > done

    def _forget_removed(self) -> None:
        """Free the nodes that were removed: in a large graph they are most of those that there were."""
        gone = self.remains.take_apart()
        for node in gone:
            self.refusals.pop(node, None)
            self.left_out.pop(node, None)
        self.builder.forget(gone)

    def _left_out(self) -> list[ir.Node]:
        """The nodes that no change has queued, though one could concern them."""
        self.remains.take_out()
        found, self.left_out, self.wide = self.left_out, {}, set()
        far = [node for node in query.all_nodes(self.model) if (node.domain, node.op_type) in self.far]
        return list(dict.fromkeys((*found, *far)))

    def _visit(self, node: ir.Node) -> None:
        """Fire the first rule that matches here and has no doubt; new nodes at this place get their own visit."""
        self.refusals.pop(node, None)
        for prepared in self.index.candidates(node):
            self.attempts += 1
            if self._attempt(prepared, node):
                return

    def _attempt(self, prepared: PreparedRule, node: ir.Node) -> bool:
        refused: str | None = None
        for match in prepared.matcher.matches(node):
            reason = prepared.check(match)
            if reason is None and prepared.pattern.others:
                reason = self.order.doubt(match)
            if reason is None:
                self._fire(prepared, match, node)
                return True
            refused = refused or reason
        if refused is not None:
            self.refusals.setdefault(node, {})[prepared.rule.name] = refused
        return False

    def _fire(self, prepared: PreparedRule, match: Match, root: ir.Node) -> None:
        """Build what the rule wants, put it in place of the match, and remove what nothing uses any more."""
        self._record(prepared.rule, root)
        covered, op = match.covered(), self.builder
        op.start(root, covered)
        values = prepared.rewrite(op, match)
        _assert_independent(prepared.rule, op.nodes, match)
        if self.watch is not None and root.graph is not None:
            created = tuple(op.nodes)
            self.watch(Firing(self.applications[-1], root.graph, covered, created, match.replaced, values))
        self._insert(self.order.first_root(match) if prepared.pattern.others else root, op.nodes)
        op.replace(match.replaced, values)
        released = self.remains.release(covered)
        last = values[0].producer()
        if last in op.nodes:
            last.name = root.name
        self._revisit(op.nodes, values, released)

    def _insert(self, place: ir.Node, nodes: Sequence[ir.Node]) -> None:
        graph = place.graph
        assert graph is not None, f"{place.name!r} is in no graph"
        if nodes:
            graph.insert_before(place, nodes)
            self.order.insert_before(place, nodes)

    def _record(self, rule: Rule, root: ir.Node) -> None:
        self.applications.append(Application(rule.name, root.name or "", rule.exactness.value))
        if len(self.applications) > self.limit:
            name, times = Counter(item.rule for item in self.applications).most_common(1)[0]
            raise AssertionError(f"rewriting does not end: {name} fired {times} times, last at {root.name!r}")

    def _revisit(self, nodes: Sequence[ir.Node], values: Sequence[ir.Value], released: Sequence[ir.Value]) -> None:
        """Queue the roots whose match could reach what changed."""
        seen = dict.fromkeys(nodes)
        level = self._new_users((*values, *released), seen)
        for _ in range(self.reach - 1):
            # What lies behind a node that was not visited yet is later in the graph, and was not visited, either.
            spread = [value for node in level if node not in self.untouched for value in node.outputs]
            level = self._new_users(spread, seen)
            if not level:
                break
        for node in seen:
            if node not in self.queued and self.index.has_root(node):
                self.queued.add(node)
                self.queue.append(node)

    def _new_users(self, values: Iterable[ir.Value], seen: dict[ir.Node, None]) -> list[ir.Node]:
        """Add to `seen` the nodes that read values, but for constants, and return those that were not there.

        Values with so many uses that a sweep sees to them do not count, either.
        """
        found = []
        for value in values:
            # A node that began to read a wide value after this is new, and is visited for that.
            if value in self.wide or query.is_constant(value):
                continue
            uses = value.uses()
            if len(uses) > self.MOST_SPREAD:
                self.wide.add(value)
                self.left_out.update((user, None) for user, _ in uses)
                continue
            for user, _ in uses:
                if user not in seen:
                    seen[user] = None
                    found.append(user)
        return found

    def _standing_refusals(self) -> tuple[Refusal, ...]:
        return tuple(
            Refusal(rule, node.name or "", reason)
            for node, reasons in self.refusals.items()
            if node.graph is not None
            for rule, reason in reasons.items()
        )
