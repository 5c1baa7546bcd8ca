"""Quantized inputs and outputs: the application hands over integers, and the outermost Q and DQ go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NotRequired, TypedDict

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.model import edit, query
from intact.model.copying import copied
from intact.model.node_encodings import encoding_of
from intact.numbers import encoding as arithmetic
from intact.numbers.encoding import Encoding
from intact.records import dataclass

Direction = Literal["input", "output"]


class Port(TypedDict):
    """An input or output of a model, with its scale and zero point where it is on a grid."""

    name: str
    direction: Direction
    dtype: str
    shape: NotRequired[list[int | str | None] | None]
    scale: NotRequired[float | None]
    zero_point: NotRequired[int | None]


@dataclass(frozen=True, slots=True)
class IntegerIO:
    """A model whose graph inputs and outputs are integers, and the grids that they are on, by name."""

    model: ir.Model
    inputs: dict[str, Encoding]
    outputs: dict[str, Encoding]

    def quantize(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Float inputs as the integers that the model takes; others as they are."""
        return to_integers(feeds, self.inputs)

    def dequantize(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Integer outputs as the floats that they stand for; others as they are."""
        return to_floats(outputs, self.outputs)

    def ports(self) -> tuple[Port, ...]:
        """Every input and output with its type and, where it is on a grid, scale and zero point."""
        inputs = [_port("input", value, self.inputs) for value in self.model.graph.inputs]
        return (*inputs, *(_port("output", value, self.outputs) for value in self.model.graph.outputs))


def to_integers(feeds: Mapping[str, np.ndarray], grids: Mapping[str, Encoding]) -> dict[str, np.ndarray]:
    """Values as integers on the grids that are there for them; others as they are."""
    return {n: arithmetic.quantize(v, grids[n]) if n in grids else v for n, v in feeds.items()}


def to_floats(outputs: Mapping[str, np.ndarray], grids: Mapping[str, Encoding]) -> dict[str, np.ndarray]:
    """Integers as what they stand for on the grids that are there for them; others as they are."""
    return {n: arithmetic.dequantize(v, grids[n]) if n in grids else v for n, v in outputs.items()}


def grids(ports: Iterable[Port], direction: Direction) -> dict[str, Encoding]:
    """The grids that the ports of a manifest tell of one direction, `input` or `output`, by name."""
    return {
        port["name"]: Encoding(port["dtype"], np.array(port["scale"], np.float32), np.array(port["zero_point"]))
        for port in ports
        if port["direction"] == direction and port["scale"] is not None
    }


def integer_io(model: ir.Model) -> IntegerIO:
    """A copy of a QDQ model without the Q behind its inputs and the DQ before its outputs."""
    result = copied(model)
    names = edit.Names(result)
    inputs = {v.name or "": e for v in list(result.graph.inputs) if (e := _strip_input(v)) is not None}
    outputs = {}
    for index in range(len(result.graph.outputs)):
        name = result.graph.outputs[index].name or ""
        encoding = _strip_output(result.graph, index, names)
        if encoding is not None:
            outputs[name] = encoding
    if not inputs and not outputs:
        raise ModelError("M141", "no input or output of the graph is quantized", fix="use --io float")
    edit.prune(result)
    return IntegerIO(result, inputs, outputs)


def _strip_input(value: ir.Value) -> Encoding | None:
    node = query.only_consumer(value)
    if node is None or node.op_type != "QuantizeLinear" or node.inputs[0] is not value:
        return None
    quantized = node.outputs[0]
    encoding = _encoding(node)
    if encoding is None or quantized.is_graph_output():
        return None
    value.type = ir.TensorType(ir.DataType[encoding.dtype.upper()])  # a clone shares the old type object
    for user, index in list(quantized.uses()):
        user.replace_input_with(index, value)
    return encoding


def _strip_output(graph: ir.Graph, index: int, names: edit.Names) -> Encoding | None:
    value = graph.outputs[index]
    node = value.producer()
    quantized = node.inputs[0] if node is not None and node.op_type == "DequantizeLinear" else None
    if node is None or quantized is None or quantized.producer() is None or quantized.is_graph_output():
        return None
    encoding = _encoding(node)
    if encoding is None:
        return None
    name = value.name
    value.name = names.take(f"{name}_float")
    quantized.name = name
    graph.outputs[index] = quantized
    return encoding


def _encoding(node: ir.Node) -> Encoding | None:
    """The grid of a Q or DQ, or None where its scale is computed or there is more than one."""
    found = encoding_of(node)
    if found is None or found.scale.size != 1:
        return None
    return Encoding(found.dtype, found.scale.reshape(()), found.zero_point.reshape(()))


def _port(direction: Direction, value: ir.Value, grids: Mapping[str, Encoding]) -> Port:
    encoding = grids.get(value.name or "")
    dtype = value.dtype.name.lower() if value.dtype is not None else "unknown"
    port: Port = {"name": value.name or "", "direction": direction, "dtype": dtype}
    if value.shape is not None:
        port["shape"] = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    if encoding is not None:
        port |= {"scale": float(encoding.scale), "zero_point": int(encoding.zero_point)}
    return port
