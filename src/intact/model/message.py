"""A model as a protobuf message with some tensors in place of its own, written without a copy of the model."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

ANNOTATION = "quant_parameter_tensor_names"

# The attributes that hold constants, or graphs which may.
NESTED = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)


def is_flat(model: ir.Model) -> bool:
    """True if all constants of a model are initializers of its one graph, so that `of` can replace them all."""
    if model.functions:
        return False
    return not any(item.type in NESTED for node in model.graph for item in node.attributes.data.values())


def part(
    model: ir.Model,
    nodes: Collection[ir.Node],
    inputs: Mapping[ir.Value, tuple[ir.TypeProtocol, ir.Shape | None] | None],
    outputs: Sequence[ir.Value],
    known: Mapping[ir.Value, ir.TensorProtocol] = MappingProxyType({}),
) -> ir.Model:
    """Some nodes of a model where they stand, seen as a model to be written; nothing else may be asked of it.

    Inputs have the types and shapes given for them, or their own, and results that are `known` beforehand are
    constants. Nodes and constants have to be flat.
    """
    read = (value for node in nodes for value in node.inputs if value is not None)
    constants = {value.name or "": value for value in (*read, *outputs) if value.is_initializer()}
    constants |= {value.name or "": cast(ir.Value, _Seen(value, const_value=tensor)) for value, tensor in known.items()}
    seen = [value if known is None else _Seen(value, type=known[0], shape=known[1]) for value, known in inputs.items()]
    graph = _SeenGraph(model.graph, nodes=nodes, inputs=seen, outputs=outputs, initializers=constants)
    return ir.Model(cast(ir.Graph, graph), ir_version=model.ir_version)


def of(model: ir.Model, tensors: Mapping[ir.Value, ir.TensorProtocol], *, described: bool = True) -> onnx.ModelProto:
    """The message of a model, with these tensors for those initializers of its main graph.

    Where it is not `described`, types and shapes of initializers are not repeated beside their tensors; a part of a
    model leaves out those of all results that follow from ONNX's own operators.
    """
    graph = model.graph
    if model.functions or _has_annotations(graph):
        constants = {
            name: _Constant(value, tensors.get(value, value.const_value), described)
            for name, value in graph.initializers.items()
        }
        return ir.serde.serialize_model(_Seen(model, graph=_SeenGraph(graph, nodes=graph, initializers=constants)))
    empty = _SeenGraph(graph, nodes=(), inputs=(), outputs=(), initializers={})
    result = ir.serde.serialize_model(_Seen(model, graph=empty))
    _Writer(result).write(graph, tensors, described=described)
    return result


def _has_annotations(graph: ir.Graph) -> bool:
    """True if something is said about the grid of a tensor beside the graph, as some quantizers once did."""
    values = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
    # Asking for `meta` makes a store of 0.7 KB where there is none: a copy of a large graph has a million values.
    return any(value._metadata is not None and ANNOTATION in value._metadata for value in values)


class _Writer:
    """Writes constants and nodes of a graph into a message, to the bytes that `ir.serde` writes.

    Nothing is made to look for what is not there: `metadata_props` is an empty dict at everything that was asked once.
    Most nodes and values have nothing but names, a type and a shape, and many have the same of these: such are written
    here in a fraction of the time. All others are left to `ir.serde`.
    """

    def __init__(self, message: onnx.ModelProto) -> None:
        self._message = message
        self._types: dict[object, onnx.TypeProto] = {}

    def write(self, graph: ir.Graph, tensors: Mapping[ir.Value, ir.TensorProtocol], *, described: bool) -> None:
        written, inputs = self._message.graph, {value.name for value in graph.inputs}
        is_part = isinstance(graph, _SeenGraph)
        for value in graph.inputs:
            self._write_value(written.input.add(), value)
        for value in graph.outputs:
            self._write_value(written.output.add(), value)
        for name, value in graph.initializers.items():
            tensor = tensors.get(value, value.const_value)
            if described and name not in inputs:
                self._describe(value)
            if tensor is not None:
                _write_tensor(written.initializer.add(), tensor, name)
        for node in graph:
            _write_node(written.node.add(), node, self._message.ir_version)
            for value in () if is_part and not node.domain else node.outputs:
                if not value.is_graph_output():
                    self._describe(value)

    def _describe(self, value: ir.Value) -> None:
        """Write type and shape of a value, if it has any of them and a name."""
        if not value.name or (
            value.type is None and value.shape is None and not value._metadata_props and not value.doc_string
        ):
            return
        self._write_value(self._message.graph.value_info.add(), value)

    def _write_value(self, info: onnx.ValueInfoProto, value: ir.Value) -> None:
        key = _key(value)
        if key is None or not value.name:
            ir.serde.serialize_value_into(info, value)
            return
        if key not in self._types:
            self._types[key] = ir.serde.serialize_value(value).type
        info.name = value.name
        info.type.CopyFrom(self._types[key])


def _key(value: ir.Value) -> object | None:
    """Type and shape of a tensor of which nothing else is known, or None."""
    kind, shape = value.type, value.shape
    if type(kind) is not ir.TensorType or kind.denotation or value._metadata_props or value.doc_string:
        return None
    if shape is None:
        return kind.dtype
    dims = shape.dims
    return None if any(map(shape.get_denotation, range(len(dims)))) else (kind.dtype, dims)


class Emptied(ir.Tensor[np.ndarray]):
    """A tensor that is written without its bytes, for somebody who puts them there."""


def is_written_plainly(tensor: ir.TensorProtocol) -> bool:
    """True for a tensor whose message is its name, type and shape, and the bytes of its array."""
    return type(tensor) is ir.Tensor and not tensor.doc_string and not tensor._metadata_props and _is_bytes(tensor)


def _write_tensor(message: onnx.TensorProto, tensor: ir.TensorProtocol, name: str) -> None:
    if type(tensor) is Emptied:
        message.name, message.data_type, message.raw_data = name, tensor.dtype, b""
        message.dims.extend(tensor.numpy().shape)
        return
    if type(tensor) is not ir.Tensor or tensor.doc_string or tensor._metadata_props or not _is_bytes(tensor):
        tensor.name = name
        ir.serde.serialize_tensor_into(message, tensor)
        return
    array = tensor.numpy()
    message.name, message.data_type, message.raw_data = name, tensor.dtype, array.tobytes()
    message.dims.extend(array.shape)


def _is_bytes(tensor: ir.TensorProtocol) -> bool:
    """True if the bytes of the array are those of the message; narrow integers are packed there."""
    dtype = tensor.dtype
    return is_plain(dtype) and sys.byteorder == "little" and dtype.numpy() == tensor.numpy().dtype


@functools.cache
def is_plain(dtype: ir.DataType) -> bool:
    """True if numpy has a type itself."""
    if dtype == ir.DataType.STRING:
        return False
    found = dtype.numpy()
    return found.isbuiltin == 1 and found.kind in "biuf"


def _write_node(message: onnx.NodeProto, node: ir.Node, ir_version: int) -> None:
    outputs = [value.name for value in node.outputs]
    is_plain = not (node.overload or node.doc_string or node._metadata_props or node.device_configurations)
    if not is_plain or not all(outputs):
        ir.serde.serialize_node_into(message, node, model_ir_version=ir_version)
        return
    message.op_type = node.op_type
    if node.domain:
        message.domain = node.domain
    if node.name:
        message.name = node.name
    message.input.extend(["" if value is None else value.name or "" for value in node.inputs])
    message.output.extend(outputs)
    for attribute in node.attributes.values():
        write = ir.serde.serialize_reference_attribute_into if attribute.is_ref() else ir.serde.serialize_attribute_into
        write(message.attribute.add(), attribute)


class _Seen:
    """Something with other values for some of its attributes."""

    def __init__(self, item: object, **others: object) -> None:
        self._item = item
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


class _SeenGraph(_Seen):
    """A graph with other values for some of its attributes."""

    nodes: Collection[ir.Node]

    def __iter__(self) -> Iterator[ir.Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


class _Constant(_Seen):
    """An initializer with another tensor."""

    def __init__(self, value: ir.Value, tensor: ir.TensorProtocol | None, described: bool) -> None:
        unsaid: dict[str, object] = (
            {} if described else {"type": None, "shape": None, "metadata_props": {}, "doc_string": None}
        )
        super().__init__(value, const_value=tensor, **unsaid)
