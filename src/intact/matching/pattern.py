"""The language of patterns: plain Python expressions whose names bind to what they match.

::

    def pattern(self, op, x, s, z, b=None):
        return op.QuantizeLinear(op.Conv(op.DequantizeLinear(x, s, z, _shared=True), w, b), s, z)

A parameter is a wildcard; one with the default None may be absent. The same name twice means the same value, or
two constants equal by value. `op.each(item)` stands for all inputs that are left, `op.every_output(node)` for all
outputs of a node, however many. `matcher.py` finds where a pattern fits.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.records import dataclass

OpKey: TypeAlias = tuple[str, str]
"""Domain and op type."""

Attribute: TypeAlias = ir.Attr | float | str | Sequence[int] | Sequence[float] | Sequence[str] | ir.TensorProtocol
"""An attribute to be built: as another node has it, or its plain value."""

AttributeTest: TypeAlias = Callable[[object], bool] | Attribute
"""The value that an attribute must have, or a test of it, which gets None where the attribute is absent."""

# How many leading inputs form one operand of an op whose two operands may be swapped.
SWAPPABLE: dict[OpKey, int] = {
    **{("", op): 1 for op in ("Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean")},
    **{("", op): 1 for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    # a, a_scale, a_zero_point, b, b_scale, b_zero_point, …
    **{("com.microsoft", op): 3 for op in ("QLinearAdd", "QLinearMul")},
}


@dataclass(frozen=True, eq=False, slots=True)
class Var:
    """Any value; it binds to `name`."""

    name: str
    optional: bool = False
    constant: bool = False

    def __str__(self) -> str:
        return f"a constant for {self.name!r}" if self.constant else f"a value for {self.name!r}"


@dataclass(frozen=True, eq=False, slots=True)
class Literal:
    """A constant that equals `array`, in the constant's own dtype, within the relative tolerance `rtol`."""

    array: np.ndarray
    rtol: float = 0.0

    def __str__(self) -> str:
        return f"the constant {self.array.tolist()}"


@dataclass(frozen=True, eq=False, slots=True)
class NodePattern:
    """A node of one of the types `keys`, whose inputs match `inputs` to the last one.

    An output of it that the match does not replace may have no use outside of the match, unless `shared`.
    """

    keys: frozenset[OpKey]
    inputs: tuple[ValuePattern, ...]
    attributes: tuple[tuple[str, AttributeTest], ...] = ()
    name: str | None = None
    shared: bool = False

    def __str__(self) -> str:
        return " or ".join(sorted(op_type for _, op_type in self.keys))


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """One output of a node that matches `node`, or all of them where `index` is None."""

    node: NodePattern
    index: int | None = 0

    def __str__(self) -> str:
        return str(self.node)


@dataclass(frozen=True, eq=False, slots=True)
class AnyOf:
    """A value that matches one of `options`, tried in order."""

    options: tuple[ValuePattern, ...]

    def __str__(self) -> str:
        return " or ".join("nothing" if option is None else str(option) for option in self.options)


@dataclass(frozen=True, eq=False, slots=True)
class Each:
    """All the inputs that are left, each of which matches `item`; names found only in `item` bind to tuples."""

    item: Var | Output | AnyOf

    def __str__(self) -> str:
        return str(self.item)


ValuePattern: TypeAlias = Var | Literal | Output | AnyOf | Each | None
"""A pattern for one input; None stands for an input that is absent."""

Wanted: TypeAlias = ValuePattern | float | Sequence[float] | np.ndarray
"""An input as a rule writes it: a pattern, or the numbers of a constant."""

Roots: TypeAlias = Output | AnyOf | Sequence[Output]
"""The values that a match replaces; only the first may have alternatives."""


class Patterns:
    """Builds patterns: `op.Conv(x, w)` is the output of a Conv of what matches `x` and `w`."""

    def __getattr__(self, op_type: str) -> Callable[..., Output]:
        return functools.partial(self.node, op_type)

    def node(
        self,
        op_types: str | Sequence[str],
        *inputs: Wanted,
        _domain: str = "",
        _attrs: Mapping[str, AttributeTest] | None = None,
        _name: str | None = None,
        _shared: bool = False,
    ) -> Output:
        """The first output of a node of any of `op_types`.

        `_attrs` maps a name to the value that the attribute must have, or to a test of it (None where absent).
        `_name` binds the node itself. `_shared` lets it have uses outside of the match.
        """
        types = (op_types,) if isinstance(op_types, str) else tuple(op_types)
        patterns = tuple(_value_pattern(item) for item in inputs)
        assert not any(isinstance(item, Each) for item in patterns[:-1]), "each() takes all inputs left: put it last"
        keys = frozenset((_domain, op_type) for op_type in types)
        return Output(NodePattern(keys, patterns, tuple((_attrs or {}).items()), _name, _shared))

    def any_of(self, *options: Wanted) -> AnyOf:
        """Whichever of `options` matches first; None among them lets the input be absent."""
        return AnyOf(tuple(_value_pattern(option) for option in options))

    def each(self, item: Var | Output | AnyOf | None) -> Each:
        """Every input that is left, however many."""
        assert item is not None, "parameters of a pattern are wildcards, whatever their default"
        return Each(item)

    def outputs(self, output: Output, count: int) -> tuple[Output, ...]:
        """The first `count` outputs of the node, instead of its first alone."""
        return tuple(dataclasses.replace(output, index=index) for index in range(count))

    def every_output(self, output: Output) -> Output:
        """All outputs of the node, however many, instead of its first: a pattern's only root."""
        return dataclasses.replace(output, index=None)

    def constant(self, value: Var | float | Sequence[float] | np.ndarray | None, *, rtol: float = 0) -> Var | Literal:
        """A wildcard that takes constants only, or a literal with a tolerance."""
        assert value is not None, "parameters of a pattern are wildcards, whatever their default"
        if isinstance(value, Var):
            return dataclasses.replace(value, constant=True)
        return Literal(np.asarray(value), rtol)


def _value_pattern(item: Wanted) -> ValuePattern:
    if item is None or isinstance(item, (Var, Literal, Output, AnyOf, Each)):
        return item
    return Literal(np.asarray(item))


class Pattern:
    """A pattern as the matcher wants it: its roots, the op types it can start at, and what it binds.

    An index of rules asks for the types and the nodes alone; what a match needs is found out at the first match.
    """

    def __init__(self, build: Callable[..., Roots]) -> None:
        parameters = list(inspect.signature(build).parameters.values())[1:]
        self.variables = {item.name: Var(item.name, optional=item.default is None) for item in parameters}
        result = build(Patterns(), **self.variables)
        roots: tuple[Output | AnyOf, ...] = tuple(result) if isinstance(result, Sequence) else (result,)
        self.starts = _starts(roots[0])
        self.others = tuple(root for root in roots[1:] if isinstance(root, Output))
        assert len(self.others) == len(roots) - 1, "only the first root may be any_of"
        outputs = [item for item in _distinct(roots) if isinstance(item, Output)]
        whole = {item for item in outputs if item.index is None}
        assert not whole or (whole <= set(self.starts) and not self.others), "every_output() is the only root"
        self.roots = roots
        self.nodes = tuple(dict.fromkeys(item.node for item in outputs))
        self.keys = frozenset(key for start in self.starts for key in start.node.keys)

    @functools.cached_property
    def tuples(self) -> frozenset[str]:
        """The names that bind to tuples: those inside of each() only."""
        return frozenset(names(self.roots)) - frozenset(names(self.roots, through_each=False))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names that a match binds."""
        return frozenset(self.variables) | frozenset(names(self.roots))

    @functools.cached_property
    def depth(self) -> int:
        """The most nodes on the way from a root to an input."""
        known: dict[int, int] = {}
        return max(_depth(root, known) for root in self.roots)

    @functools.cached_property
    def most_uses(self) -> dict[NodePattern, int]:
        """For each node of the pattern, the most uses of its outputs that other nodes of a match can make."""
        return _most_uses(self.roots)

    @functools.cached_property
    def is_plain(self) -> bool:
        """True if there are no alternatives but at the root, and no other root."""
        return not self.others and all(self._is_plain(start) for start in self.starts)

    @functools.cached_property
    def local(self) -> dict[Each, frozenset[str]]:
        """For each each(), the names that it binds to tuples."""
        eaches = [item for root in self.roots for item in _walk(root) if isinstance(item, Each)]
        return {item: self.tuples & frozenset(names([item.item])) for item in eaches}

    def _is_plain(self, pattern: ValuePattern, turned: NodePattern | None = None) -> bool:
        """True if there is no alternative at a value or before it; the operands of `turned` do not count."""
        if isinstance(pattern, Each):
            item = pattern.item
            return isinstance(item, Var) and item.optional and not item.constant and item.name in self.tuples
        if isinstance(pattern, Output):
            is_fixed = pattern.node is turned or not _swaps(pattern.node)
            return is_fixed and all(self._is_plain(item, turned) for item in pattern.node.inputs)
        return not isinstance(pattern, AnyOf)

    @functools.cached_property
    def turned(self) -> NodePattern | None:
        """The node whose two operands may be swapped, where that is the only alternative of the pattern."""
        found = {item.node for item in _distinct(self.starts) if isinstance(item, Output) and _swaps(item.node)}
        turned = next(iter(found)) if len(found) == 1 and len(self.starts) == 1 and not self.others else None
        if turned is None or not self._is_plain(self.starts[0], turned):
            return None
        sizes = {SWAPPABLE[key] for key in turned.keys & SWAPPABLE.keys()}
        return turned if sizes == {3} or len(turned.inputs) == 2 else None

    @functools.cached_property
    def wants_alone(self) -> bool:
        """True if the one root reads first what nothing else may read."""
        firsts = [(*start.node.inputs, None)[0] for start in self.starts if not _swaps(start.node)]
        only = [item for item in firsts if isinstance(item, Output) and not item.node.shared]
        return len(only) == len(self.starts) and not self.others and all(self.most_uses[x.node] == 1 for x in only)

    @functools.cached_property
    def wants_beside(self) -> frozenset[OpKey]:
        """The types of the other roots, where all roots are nodes that read one value first."""
        if not self.others:
            return frozenset()
        nodes = {root.node for root in (*self.starts, *self.others)}
        reads_one = len(nodes) > 1 and len({node.inputs[:1] for node in nodes}) == 1
        return frozenset(key for other in self.others for key in other.node.keys) if reads_one else frozenset()


def _swaps(node: NodePattern) -> bool:
    """True if the operands of what matches may stand in another order; taken all alike, their order is nothing."""
    return bool(node.keys & SWAPPABLE.keys()) and not (node.inputs and isinstance(node.inputs[-1], Each))


def _starts(root: Output | AnyOf) -> tuple[Output, ...]:
    options = root.options if isinstance(root, AnyOf) else (root,)
    found = [start for option in options for start in (_starts(option) if isinstance(option, AnyOf) else (option,))]
    outputs = tuple(start for start in found if isinstance(start, Output))
    assert len(outputs) == len(found), "a pattern's root is the output of a node"
    return outputs


def children(pattern: ValuePattern) -> tuple[ValuePattern, ...]:
    """The patterns directly below one."""
    if isinstance(pattern, Output):
        return pattern.node.inputs
    if isinstance(pattern, AnyOf):
        return pattern.options
    return (pattern.item,) if isinstance(pattern, Each) else ()


def _walk(pattern: ValuePattern, through_each: bool = True) -> Iterator[ValuePattern]:
    yield pattern
    if isinstance(pattern, Each) and not through_each:
        return
    for child in children(pattern):
        yield from _walk(child, through_each)


def names(roots: Sequence[ValuePattern], through_each: bool = True) -> Iterator[str]:
    """The names that patterns bind, of wildcards and of nodes."""
    for pattern in (item for root in roots for item in _walk(root, through_each)):
        if isinstance(pattern, Var):
            yield pattern.name
        elif isinstance(pattern, Output) and pattern.node.name is not None:
            yield pattern.node.name


def _distinct(roots: Sequence[ValuePattern]) -> Iterable[ValuePattern]:
    """Every pattern at or below the roots, once each, however many ways lead to it."""
    found: dict[int, ValuePattern] = {}
    left = list(reversed(roots))
    while left:
        item = left.pop()
        if id(item) not in found:
            found[id(item)] = item
            left += reversed(children(item))
    return found.values()


def _depth(pattern: ValuePattern, known: dict[int, int]) -> int:
    if id(pattern) not in known:
        below = max((_depth(child, known) for child in children(pattern)), default=0)
        known[id(pattern)] = below + isinstance(pattern, Output)
    return known[id(pattern)]


def _most_uses(roots: Sequence[ValuePattern]) -> dict[NodePattern, int]:
    """For each node of a pattern, the most uses of its outputs that other nodes of a match can make."""
    # A pattern that is reached by several ways counts as often as it is reached, and is looked at once.
    whole = [item for root in roots for item in _walk(root)]
    reached = Counter(map(id, whole))
    items = {id(item): item for item in whole}
    return {item.node: _uses_of(item.node, items, reached) for item in items.values() if isinstance(item, Output)}


def _uses_of(node: NodePattern, items: Mapping[int, ValuePattern], reached: Mapping[int, int]) -> int:
    before = {id(item) for child in node.inputs for item in _walk(child)}
    patterns = {key: item for key, item in items.items() if key not in before}
    if any(isinstance(item, Each) and not isinstance(item.item, Var) for item in patterns.values()):
        return sys.maxsize
    alike = [key for key, item in patterns.items() if isinstance(item, Output) and item.node.keys & node.keys]
    return max(1, sum(reached[key] for key in alike))
