"""The cost of a deployed model by the rule of its target's table, against float on the same device."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from intact.model import census, query, shapes
from intact.model.census import NodeTypes
from intact.model.copying import copied
from intact.model.multiplications import elements, multiply_adds
from intact.numbers.integer_types import FLOAT_BITS, width
from intact.results import CostEstimate
from intact.targets.spec import Costs, Level


def estimate(model: ir.Model, costs: Costs, off: Collection[str]) -> CostEstimate | None:
    """The estimate for a model in the form that is compiled, of all nodes but those that are `off` the device."""
    cost, in_float = prices(model, costs, off)
    return CostEstimate(cost / in_float, 8 * int(costs.levels[-1].bytes[0]), costs.source) if in_float else None


def prices(model: ir.Model, costs: Costs, off: Collection[str]) -> tuple[float, float]:
    """The cost of a model as it stands, and in float, as multiples of one multiply-add of the smallest types."""
    shaped = _shaped(model)
    types = {found.node: found for found in census.types_of(shaped) if found.node not in off}
    placed = [(node, types[node.name]) for node in shaped.graph if node.name in types]
    in_float = sum(_priced(node, None, costs) for node, _ in placed)
    return sum(_priced(node, found, costs) for node, found in placed), in_float


def _priced(node: ir.Node, types: NodeTypes | None, costs: Costs) -> float:
    """A node's multiply-adds and the bytes that it moves, in its types; None stands for float."""
    weight = types.weights if types is not None and multiply_adds(node) else None
    level = costs.levels[-1] if types is None else costs.level_of(types.activations, weight)
    moved = sum(_bytes(value, types, level) for value in (*_read(node), *node.outputs))
    return multiply_adds(node) * level.multiply + moved * costs.byte


def _bytes(value: ir.Value, types: NodeTypes | None, level: Level) -> float:
    """The bytes of a tensor; weights take those of their own type."""
    if not query.is_constant(_stored(value)):
        return elements(value) * level.bytes[0]
    size = FLOAT_BITS if types is None or types.weights is None else width(types.weights)
    return elements(value) * (level.bytes[1] if size == FLOAT_BITS else size / 8)


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """The tensors that a node reads."""
    return (value for value in node.inputs if value is not None)


def _stored(value: ir.Value) -> ir.Value:
    """The integers of a value behind a DequantizeLinear, or the value."""
    producer = value.producer()
    source = producer.inputs[0] if producer is not None and producer.op_type == "DequantizeLinear" else None
    return value if source is None else source


def _shaped(model: ir.Model) -> ir.Model:
    """The model with all shapes that are known; a rule may have left some of its results without."""
    if all(value.shape is not None for node in model.graph for value in node.outputs):
        return model
    result = copied(model)
    shapes.infer_shapes(result)
    return result
