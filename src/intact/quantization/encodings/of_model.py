"""The grids of a model with Q/DQ nodes, whoever made it, under the names of the float model's tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.model import query
from intact.model.node_encodings import encoding_of
from intact.numbers.encoding import Encoding
from intact.numbers.integer_types import GRID_TYPES
from intact.quantization.encodings.given import GivenGrid
from intact.records import dataclass

# Constants become `<name>_quantized` here and in ONNX Runtime's quantizer; a number tells a second form apart.
_QUANTIZED = re.compile(r"(?P<name>.+)_quantized(?:_(?P<number>\d+))?")
_OPS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True)
class _Found:
    """A grid in the graph: the tensor that it is of, and the nodes that read from it."""

    tensor: str
    encoding: Encoding
    constant: bool
    readers: tuple[str, ...]


def of_model(model: ir.Model) -> dict[str, GivenGrid]:
    """Every grid of the model by tensor; a second one on the same tensor is `tensor:type`. Biases have none here."""
    result: dict[str, GivenGrid] = {}
    for found in (*_activations(model.graph), *_constants(model.graph)):
        first = result.get(found.tensor)
        second = first is not None and first.dtype != found.encoding.dtype
        given = GivenGrid.of(found.encoding, constant=found.constant, readers=found.readers if second else None)
        key = f"{found.tensor}:{given.dtype}" if second else found.tensor
        if not _same(result.setdefault(key, given), given):
            raise ModelError(
                "M190",
                f"{found.tensor} is on two grids of type {given.dtype}, and encodings have room for one",
                fix="give each node that reads it a copy of it",
            )
    if not result:
        raise ModelError(
            "M191", "the model has no Q/DQ nodes with constant grids", fix="give model.qdq.onnx of a build"
        )
    return result


def _same(left: GivenGrid, right: GivenGrid) -> bool:
    return (
        (left.dtype, left.axis) == (right.dtype, right.axis)
        and np.array_equal(left.scale, right.scale)
        and np.array_equal(left.zero_point, right.zero_point)
    )


def _activations(graph: ir.Graph) -> Iterator[_Found]:
    """The grids of Q nodes, and of graph inputs that are integers already, in the order in which they are read.

    The order decides which of two grids on one tensor is the first: the one of the first reader.
    """
    origins: dict[ir.Value, tuple[str, str]] = {}  # of quantized values: the tensor that they stand for, their type
    for node in sorted(_written(graph), key=_first_read(graph)):
        quantized = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
        encoding = _encoding(node, quantized) if quantized is not None else None
        if quantized is None or encoding is None:
            continue
        name, dtype = _origin(node, origins)
        if not name or dtype == encoding.dtype:  # the same type on another grid is a tensor of its own
            name = _output_name(quantized) or node.inputs[0].name or ""  # type: ignore[union-attr]
        origins[quantized] = (name, encoding.dtype)
        yield _Found(name, encoding, query.is_constant(node.inputs[0]), _readers(quantized))


def _written(graph: ir.Graph) -> list[ir.Node]:
    """Q nodes, and the DQ nodes that read a graph input."""
    pairs = [node for node in graph if node.domain == "" and node.op_type in _OPS]
    return [n for n in pairs if n.op_type == "QuantizeLinear" or (n.inputs[0] and n.inputs[0].is_graph_input())]


def _first_read(graph: ir.Graph) -> Callable[[ir.Node], int]:
    """The position of the first node behind the pair of a Q; a pair that is read nowhere comes last."""
    position = {node: index for index, node in enumerate(graph)}

    def first(node: ir.Node) -> int:
        return min((position[user] for user in _users(node.outputs[0])), default=len(position))

    return first


def _users(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that read a value, through DQ nodes."""
    for user in value.consumers():
        if user.op_type == "DequantizeLinear":
            yield from user.outputs[0].consumers()
        else:
            yield user


def _origin(node: ir.Node, origins: Mapping[ir.Value, tuple[str, str]]) -> tuple[str, str]:
    """The tensor and type that a Q requantizes, or nothing."""
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    if producer is None or producer.op_type != "DequantizeLinear" or producer.inputs[0] is None:
        return "", ""
    return origins.get(producer.inputs[0], ("", ""))


def _output_name(quantized: ir.Value) -> str | None:
    """The graph output that a pair writes: its name is the tensor's own, while the float before it was renamed."""
    values = [user.outputs[0] for user in quantized.consumers() if user.op_type == "DequantizeLinear"]
    return next((value.name for value in values if value.is_graph_output()), None)


def _readers(quantized: ir.Value) -> tuple[str, ...]:
    return tuple(sorted({user.name or "" for user in _users(quantized)}))


def _constants(graph: ir.Graph) -> list[_Found]:
    found: list[tuple[int, _Found]] = []
    for node in graph:
        source = node.inputs[0] if node.inputs else None
        if node.domain != "" or node.op_type != "DequantizeLinear" or source is None or not query.is_constant(source):
            continue
        match = _QUANTIZED.fullmatch(source.name or "")
        name, number = (match["name"], int(match["number"] or 0)) if match else (source.name or "", 0)
        encoding = _encoding(node, source)
        if encoding is not None and encoding.dtype != "int32":
            found.append((number, _Found(name, encoding, True, _readers(source))))
    return [entry for _, entry in sorted(found, key=lambda item: item[0])]


def _encoding(node: ir.Node, integers: ir.Value) -> Encoding | None:
    """The grid of a Q or DQ, or None where it is computed or its type is none that encodings have."""
    found = encoding_of(node)
    if found is None or found.dtype not in GRID_TYPES:
        return None
    if found.block_size:
        raise ModelError("M192", f"{node.name} ({node.op_type}): scales per block, which encodings have no room for")
    return found if found.axis is None else replace(found, axis=_positive(found.axis, integers))


def _positive(axis: int, integers: ir.Value) -> int:
    return axis if axis >= 0 else axis + (query.rank(integers) or 0)
