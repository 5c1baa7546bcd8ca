"""The cost of a model as it was written: every node at the price of the types that it has there, whoever chose them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from intact.model.census import NodeTypes, types_of
from intact.model.multiplications import elements, multiply_adds
from intact.numbers.integer_types import FLOAT_BITS, bits, width
from intact.records import dataclass
from intact.search.mixed.cost import Prices
from intact.targets.spec import Costs, Level


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a written model, how many groups have each precision in it, and the bytes of its constants."""

    cost: float
    groups: Mapping[str, int]
    bytes: int


def bill(prices: Prices, given: ir.Model, written: ir.Model) -> Bill:
    """The bill of `written`, which was made from `given`, the float model that the prices are for, with its shapes."""
    types = _types(written)
    rows = {name: _row(node, types.get(name), prices.costs) for name, node in _nodes(given).items()}
    cost = _products(prices, given, rows) + _weights(prices, given, types) + _tensors(prices, given, rows)
    groups = Counter(_dearest((rows[name] for name in group.nodes), prices.costs) for group in prices.structure.groups)
    named = {level.name: groups[level.name] for level in prices.costs.levels if groups[level.name]}
    constants = (value.const_value for value in written.graph.initializers.values())
    return Bill(cost, named, sum(tensor.nbytes for tensor in constants if tensor is not None))


def _types(written: ir.Model) -> dict[str, NodeTypes]:
    """The types of nodes by their names; a name that is gone is that of the nodes which were made of it."""
    found = types_of(written)
    return {name: types for types in found for name in types.given} | {types.node: types for types in found}


def _row(node: ir.Node, types: NodeTypes | None, costs: Costs) -> Level:
    """The cheapest level that has room for the types of a node; weights count where they are multiplied by."""
    if types is None:
        return costs.levels[-1]
    return costs.level_of(types.activations, types.weights if multiply_adds(node) else None)


def _products(prices: Prices, given: ir.Model, rows: Mapping[str, Level]) -> float:
    nodes = _nodes(given)
    names = [name for group in prices.structure.groups for name in group.nodes]
    return sum(multiply_adds(nodes[name], prices.work.lanes) * rows[name].multiply for name in names)


def _weights(prices: Prices, given: ir.Model, types: Mapping[str, NodeTypes]) -> float:
    """Reading every weight once, in the bytes of the type that it is stored in."""
    floats = prices.costs.levels[-1].bytes[1]
    stored: dict[str, float] = {}
    for weight in prices.structure.plan.weights:
        found = types.get(weight.node)
        dtype = found.weights if found is not None and found.weights is not None else "float"
        size = floats if width(dtype) == FLOAT_BITS else bits(dtype) / 8
        stored[weight.tensor] = max(stored.get(weight.tensor, 0.0), size)
    values = given.graph.initializers
    return sum(elements(values[name]) * size for name, size in stored.items()) * prices.costs.byte


def _tensors(prices: Prices, given: ir.Model, rows: Mapping[str, Level]) -> float:
    found = prices.structure
    values = {value.name: value for node in given.graph for value in node.outputs}
    values |= {value.name: value for value in given.graph.inputs}
    total = 0.0
    for index, tensor in enumerate(found.tensors):
        value = values[tensor.name]
        producer = value.producer()
        written = rows[producer.name or ""] if tensor.writer is not None and producer is not None else None
        users = {node.name or "" for node in value.consumers()}
        read = [
            level
            for group in tensor.readers
            for level in {rows[name].name: rows[name] for name in found.groups[group].nodes if name in users}.values()
        ]
        total += prices.moved(index, written, read)
    return total


def _dearest(rows: Iterable[Level], costs: Costs) -> str:
    return max(rows, key=costs.levels.index).name


def _nodes(model: ir.Model) -> dict[str, ir.Node]:
    return {node.name or "": node for node in model.graph}
