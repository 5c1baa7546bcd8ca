"""An index of patterns by the types of a node and of the nodes before it, to find those that could match there.

A place holds types alone, so that few places stand for the nodes of a large graph, and each is judged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

import onnx_ir as ir

from intact.matching.pattern import (
    SWAPPABLE,
    AnyOf,
    Each,
    Literal,
    NodePattern,
    OpKey,
    Output,
    Pattern,
    ValuePattern,
    Var,
)

NodePlace: TypeAlias = tuple[OpKey, tuple["Place", ...]]
"""A node, as its type and the places of those operands that tell patterns apart; none at the greatest depth."""

Place: TypeAlias = NodePlace | tuple[()] | None
"""The node that a value comes from. () stands for a value from no node, None for an input that is absent.
"""

Beside: TypeAlias = frozenset[OpKey] | None
"""Of the other nodes that read what a node reads first, the types that patterns seek; None where there are none."""

# Most patterns differ by then.
DEPTH = 2

# With more nodes than this beside a node, any type may be among them.
MOST_READERS = 16


class HasPattern(Protocol):
    """Anything that is to be found by its pattern."""

    @property
    def pattern(self) -> Pattern: ...


Item = TypeVar("Item", bound=HasPattern)


class PatternIndex(Generic[Item]):
    """Finds, for a node, the items whose pattern could match with its root there, in the order they were given."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._by_key: dict[OpKey, list[Item]] = {}
        for item in items:
            for key in sorted(item.pattern.keys):
                self._by_key.setdefault(key, []).append(item)
        self._telling = _telling(node for item in items for node in item.pattern.nodes)
        self._sought = frozenset(key for item in items for key in item.pattern.wants_beside)
        self._judged: dict[tuple[Place, Beside], list[Item]] = {}

    def has_root(self, node: ir.Node) -> bool:
        """True if any pattern has a root of the node's type."""
        return (node.domain, node.op_type) in self._by_key

    def candidates(self, node: ir.Node) -> list[Item]:
        """The items that could match at a node."""
        key = (node.domain, node.op_type)
        known = self._by_key.get(key)
        if known is None:
            return []
        place, beside = self._place(key, node, DEPTH), self._beside(node)
        found = self._judged.get((place, beside))
        if found is None:
            found = [item for item in known if self._may_start(item.pattern, place, beside)]
            self._judged[place, beside] = found
        return found

    def _place(self, key: OpKey, node: ir.Node, depth: int) -> NodePlace:
        telling = self._telling.get(key) if depth else None
        if not telling:
            return key, ()
        inputs = node.inputs
        operands: list[Place] = []
        for position in telling:
            value = inputs[position] if position < len(inputs) else None
            producer = None if value is None else value.producer()
            if producer is not None:
                operands.append(self._place((producer.domain, producer.op_type), producer, depth - 1))
            else:
                operands.append(None if value is None else ())
        return key, tuple(operands)

    def _beside(self, node: ir.Node) -> Beside:
        inputs = node.inputs
        uses = inputs[0].uses() if inputs and inputs[0] is not None else ()
        if len(uses) < 2:
            return None
        if len(uses) > MOST_READERS:
            return self._sought
        return self._sought.intersection([(user.domain, user.op_type) for user, _ in uses if user is not node])

    def _may_start(self, pattern: Pattern, place: Place, beside: Beside) -> bool:
        if pattern.wants_beside and (beside is None or beside.isdisjoint(pattern.wants_beside)):
            return False
        if pattern.wants_alone and beside is not None:
            return False
        return any(self._may_be(start, place) for start in pattern.starts)

    def _may_be(self, pattern: ValuePattern, place: Place) -> bool:
        if isinstance(pattern, AnyOf):
            return any(self._may_be(option, place) for option in pattern.options)
        if isinstance(pattern, Each):
            return place is None or self._may_be(pattern.item, place)
        if pattern is None or place is None:
            return place is None and (pattern is None or (isinstance(pattern, Var) and pattern.optional))
        if isinstance(pattern, Output):
            return len(place) == 2 and place[0] in pattern.node.keys and self._may_read(pattern.node.inputs, place)
        wants_constant = isinstance(pattern, Literal) or pattern.constant
        return not wants_constant or len(place) == 0 or place[0] == ("", "Constant")

    def _may_read(self, wanted: Sequence[ValuePattern], place: NodePlace) -> bool:
        """True if the operands of a node at that place could match those of a pattern."""
        key, operands = place
        if not operands or (SWAPPABLE.get(key) == 1 and len(wanted) > 2):
            return True
        patterns = [_wanted_at(position, wanted) for position in self._telling[key]]
        orders = (patterns, patterns[::-1]) if key in SWAPPABLE else (patterns,)
        return any(all(map(self._may_be, order, operands)) for order in orders)


def _telling(nodes: Iterable[NodePattern]) -> dict[OpKey, tuple[int, ...]]:
    """Find which of the two operands of each type tell patterns apart: one of them wants more than any value there."""
    found: dict[OpKey, set[int]] = {}
    for node in nodes:
        for key in node.keys:
            both = (0, SWAPPABLE.get(key, 1))
            wanted = [position for position in both if not _takes_anything(_wanted_at(position, node.inputs))]
            found.setdefault(key, set()).update(both if wanted and key in SWAPPABLE else wanted)
    return {key: tuple(sorted(positions)) for key, positions in found.items()}


def _wanted_at(position: int, inputs: Sequence[ValuePattern]) -> ValuePattern:
    if position < len(inputs):
        return inputs[position]
    return inputs[-1] if inputs and isinstance(inputs[-1], Each) else None


def _takes_anything(pattern: ValuePattern) -> bool:
    """True if a look at an operand would tell nothing; that one is absent is for the matcher to find."""
    item = pattern.item if isinstance(pattern, Each) else pattern
    return item is None or (isinstance(item, Var) and not item.constant)
