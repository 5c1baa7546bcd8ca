"""Counts the types that the nodes of a model compute in, from the model itself: what was done, not what was asked for.

A node between DequantizeLinear and QuantizeLinear nodes computes in the types of their grids, one that works on
integers (QLinearConv, QGemm) in its own, and any other in the type of its floats.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from intact.model import query
from intact.records import dataclass

# They bring values from one type to another, or are values: they compute nothing.
CONVERSIONS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "CastLike", "Constant"}
# What they cut off, the grid behind them cuts off: they belong to the node before them.
_CLIPPING = {"Relu", "Clip"}
# Their constants are operands like any other, on the grids of activations, and no weights.
_OPERANDS = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Concat", "Where"}
_FLOATS = ("float", "float16", "bfloat16", "double")


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """The types that one node computes in; `weights` is None where it has none.

    `given` are the names of the nodes of the given model that it came from.
    """

    node: str
    op: str
    activations: str
    weights: str | None
    given: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypeGroup:
    """All nodes of a model that compute in the same types, by their operators."""

    activations: str
    weights: str | None
    ops: dict[str, int]

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(self.ops.values())

    def to_dict(self) -> dict[str, object]:
        """The group as plain values, for a manifest."""
        return {"activations": self.activations, "weights": self.weights, "nodes": self.nodes, "ops": self.ops}


def types_of(model: ir.Model) -> list[NodeTypes]:
    """The types of every node that computes on numbers, in graph order; shapes and indices are not among them."""
    return [found for node in query.all_nodes(model) if (found := _types(node)) is not None]


def census(model: ir.Model) -> list[TypeGroup]:
    """The nodes of a model grouped by their types, the largest group first."""
    groups: dict[tuple[str, str | None], Counter[str]] = {}
    for found in types_of(model):
        groups.setdefault((found.activations, found.weights), Counter())[found.op] += 1
    result = [TypeGroup(*types, dict(ops.most_common())) for types, ops in groups.items()]
    return sorted(result, key=lambda group: (-group.nodes, group.activations, group.weights or ""))


def _types(node: ir.Node) -> NodeTypes | None:
    if node.op_type in CONVERSIONS or any(query.bodies(node)):
        return None
    weights = _weights(node)
    activations = _on_grid(node, weights) or _own_type(node)
    if activations is None:
        return None
    return NodeTypes(node.name or "", node.op_type, activations, weights, query.origin(node))


def _on_grid(node: ir.Node, weights: str | None) -> str | None:
    """The type of the integers that a node computes on; None where it computes on floats.

    A node that reads from a grid and writes floats is in float, unless it multiplies by integers.
    """
    read = [kind for value in _computed(node) if (kind := _grid_type(value)) is not None]
    written = [kind for value in node.outputs if (kind := _written_type(value)) is not None]
    if read:
        return read[0] if written or (weights is not None and weights not in _FLOATS) else None
    if not written:
        return None
    return written[0] if not _computed(node) or _follows(node) else None


def _follows(node: ir.Node) -> bool:
    """True if a node only cuts off what a node on a grid has computed, with no grid between them."""
    source = query.input_(node, 0)
    producer = source.producer() if source is not None else None
    if node.op_type not in _CLIPPING or producer is None or producer.op_type in CONVERSIONS:
        return False
    return _on_grid(producer, _weights(producer)) is not None


def _weights(node: ir.Node) -> str | None:
    """The type of the first constant on a grid, or of the first matrix of floats; a bias follows from its weight."""
    if node.op_type == "MatMulNBits":
        sign = "int" if query.input_(node, 3) is None else "uint"
        return f"{sign}{query.int_(node, 'bits', 4)}"
    if node.op_type.removeprefix("QLinear") in _OPERANDS:
        return None
    constants = [value for value in node.inputs if value is not None and _is_constant(value)]
    grids = [kind for value in constants if (kind := _grid_type(value)) is not None]
    matrices = [_name(value) for value in constants if query.is_float(value) and (query.rank(value) or 0) > 1]
    return next(iter([*grids, *matrices]), None)


def _computed(node: ir.Node) -> list[ir.Value]:
    """The inputs of a node that are numbers, computed while the model runs; indices and conditions are not."""
    inputs = [value for value in node.inputs if value is not None and not _is_constant(value)]
    return [value for value in inputs if query.is_float(value) or query.is_quantized(value)]


def _is_constant(value: ir.Value) -> bool:
    """True for constants, and for integers of a constant behind a DequantizeLinear."""
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        return query.is_constant(producer.inputs[0])
    return query.is_constant(value)


def _grid_type(value: ir.Value) -> str | None:
    """The type of the grid that a value is on when it is read: behind a DequantizeLinear, or as integers.

    A single integer is a zero point, and more than 16 bits are those of a bias.
    """
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear":
        return _name(producer.inputs[0]) if query.is_quantized(producer.inputs[0]) else None
    return _name(value) if query.is_quantized(value) and not query.is_scalar(value) else None


def _written_type(value: ir.Value) -> str | None:
    """The type of the grid that a value is brought to, at once or after what only cuts values off; None for floats."""
    if query.is_quantized(value):
        return _name(value)
    for reader in value.consumers():
        if reader.op_type == "QuantizeLinear":
            return _quantized_type(reader)
        if reader.op_type in _CLIPPING and query.only_consumer(value) is reader:
            return _written_type(reader.outputs[0])
    return None


def _quantized_type(quantizer: ir.Node) -> str:
    """The type that a QuantizeLinear writes, as ONNX defines it, where its output does not say it."""
    if quantizer.outputs[0].dtype is not None:
        return _name(quantizer.outputs[0])
    zero_point = query.input_(quantizer, 2)
    if zero_point is not None and zero_point.dtype is not None:
        return _name(zero_point)
    return ir.DataType(query.int_(quantizer, "output_dtype", 0) or ir.DataType.UINT8).name.lower()


def _own_type(node: ir.Node) -> str | None:
    """The type of the floats that a node writes; None for one that writes none."""
    return next((_name(value) for value in node.outputs if query.is_float(value)), None)


def _name(value: ir.Value | None) -> str:
    assert value is not None and value.dtype is not None, "types are named of values that have one"
    return value.dtype.name.lower()
