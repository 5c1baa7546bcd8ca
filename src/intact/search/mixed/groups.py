"""Groups of nodes that get one precision, and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field

import onnx_ir as ir

from intact.errors import TargetError
from intact.quantization.planning.planner import plan
from intact.records import dataclass
from intact.results import QuantPlan, Range
from intact.settings.config import QuantConfig
from intact.targets import predicates
from intact.targets.spec import QUANTIZED, Level, Signature, Target

FLOAT = "float"


@dataclass(frozen=True, slots=True)
class Joins:
    """The places that nodes in float can have: behind integers on a grid, before them, and between them.

    An NPU takes a node between grids for one of integers, whatever it was meant to be.
    """

    behind: bool
    before: bool
    between: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that have one precision, the weights that they multiply by, and the precisions that they can have.

    `levels` are positions in the list of the target, the cheapest first. `joins` says how the group can be in float
    beside others on grids: it may read from grids, be read to grids, or both at once.
    """

    nodes: tuple[str, ...]
    weights: tuple[str, ...]
    levels: tuple[int, ...]
    joins: Joins


@dataclass(frozen=True, slots=True)
class GroupedTensor:
    """A tensor on a grid, by the groups that write and read it; other readers of its own group do not count.

    `writer` is None where a tensor comes as float. One that is not `rounded` has values of another tensor, moved.
    """

    name: str
    writer: int | None
    readers: tuple[int, ...]
    rounded: bool


@dataclass(frozen=True, slots=True)
class Structure:
    """Everything that has a precision to choose, with the plan that has it all at the first level."""

    groups: tuple[Group, ...]
    tensors: tuple[GroupedTensor, ...]
    plan: QuantPlan


def structure(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    levels: Sequence[Level],
    ranges: Mapping[str, Range] | None = None,
) -> Structure:
    """The groups of a model and the tensors between them, as the target takes them at the first of `levels`.

    `ranges` are ranges of single tensors that are known beforehand.
    """
    lowest = plan(model, target, config, ranges=ranges)
    nodes = {node.name or "": node for node in model.graph if node.name in lowest.nodes}
    members = _grouped(nodes, lowest, target)
    plans = {}
    for position, level in enumerate(levels):
        with suppress(TargetError):  # a level that the target has nothing of is none
            plans[position] = _uniform(model, target, config, level)
    groups = tuple(_group([nodes[name] for name in names], plans, lowest, target) for names in members)
    home = {name: index for index, group in enumerate(groups) for name in group.nodes}
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    on_grid = [value for value in values if value.name in lowest.tensors]
    return Structure(groups, tuple(_tensor(value, home, lowest, target) for value in on_grid), lowest)


def _uniform(model: ir.Model, target: Target, config: QuantConfig, level: Level) -> QuantPlan | None:
    """The plan with everything at one level; None for float."""
    if level.activation == FLOAT:
        return None
    types = {"activation_type": level.activation, "weight_type": level.weight}
    return plan(model, target, config.model_copy(update=types))


@dataclass(slots=True)
class _Sets:
    """Names in disjoint sets; those of `join` become one."""

    parent: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        while self.parent.setdefault(name, name) != name:
            name = self.parent[name]
        return name

    def join(self, one: str, other: str) -> None:
        self.parent[self.root(other)] = self.root(one)


def _grouped(nodes: Mapping[str, ir.Node], lowest: QuantPlan, target: Target) -> list[list[str]]:
    """Nodes with the ones that only move or clip what they compute, and those that share a weight; in order."""
    sets = _Sets()
    for name, node in nodes.items():
        source = node.inputs[0] if node.inputs else None
        producer = source.producer() if source is not None else None
        spec = target.op(node.domain, node.op_type)
        follows = (source is not None and source.name not in lowest.tensors) or (
            spec is not None and spec.grid == "input"
        )
        if producer is not None and producer.name in nodes and follows:
            sets.join(producer.name or "", name)
    first: dict[str, str] = {}
    for weight in lowest.weights:
        sets.join(first.setdefault(weight.tensor, weight.node), weight.node)
    found: dict[str, list[str]] = {}
    for name in nodes:
        found.setdefault(sets.root(name), []).append(name)
    return list(found.values())


def _group(nodes: Sequence[ir.Node], plans: Mapping[int, QuantPlan | None], lowest: QuantPlan, target: Target) -> Group:
    names = [node.name or "" for node in nodes]
    levels: list[int] = []
    seen: list[object] = []
    for position, planned in plans.items():
        if planned is None:
            found: object = FLOAT if all(_takes_float(node, target) for node in nodes) else None
        else:
            found = _types(names, planned)
        # A level that is no other than an earlier one, because the target has nothing else there, is none.
        if found is not None and found not in seen:
            levels.append(position)
            seen.append(found)
    weights = dict.fromkeys(weight.tensor for weight in lowest.weights if weight.node in names)
    return Group(tuple(names), tuple(weights), tuple(levels), _joins(nodes, target))


def _types(names: Sequence[str], planned: QuantPlan) -> object:
    if not all(name in planned.nodes for name in names):
        return None
    return [planned.nodes[name] for name in names], [w.dtype for w in planned.weights if w.node in names]


def _takes_float(node: ir.Node, target: Target) -> bool:
    """True if a node that is not quantized stays on the target."""
    return not target.npu or bool(_float_signatures(node, target))


def _float_signatures(node: ir.Node, target: Target) -> list[Signature]:
    spec = target.op(node.domain, node.op_type)
    signatures = () if spec is None else target.signatures(spec)
    return [s for s in signatures if s.runs == "float" and predicates.meets(node, s.require)]


def _joins(nodes: Sequence[ir.Node], target: Target) -> Joins:
    if not target.npu:
        return Joins(behind=True, before=True, between=True)
    first, last = (_float_signatures(node, target) for node in (nodes[0], nodes[-1]))
    reads, writes = [s.inputs[0].types for s in first], [s.outputs[0].types for s in last]
    behind, before = (any(types[0] == "real" or _is_free(types) for types in found) for found in (reads, writes))
    return Joins(behind, before, between=False)


def _is_free(types: Sequence[str]) -> bool:
    """True if a slot takes floats as well as values on a grid."""
    return FLOAT in types and any(name in QUANTIZED for name in types)


def _tensor(value: ir.Value, home: Mapping[str, int], lowest: QuantPlan, target: Target) -> GroupedTensor:
    producer = value.producer()
    writer = home.get(producer.name or "") if producer is not None else None
    spec = target.op(producer.domain, producer.op_type) if producer is not None else None
    readers = [home[name] for node, index in value.uses() if index in lowest.uses.get(name := node.name or "", ())]
    rounded = writer is not None and spec is not None and spec.grid == "own"
    return GroupedTensor(value.name or "", writer, tuple(r for r in dict.fromkeys(readers) if r != writer), rounded)
