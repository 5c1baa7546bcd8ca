"""Element types and shapes of every value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx.shape_inference
import onnx_ir as ir

from intact.model import external, message, proto_check, query
from intact.model.copying import shape_of, shared
from intact.model.garbage_pause import no_collection

# Shapes, axes and scales are smaller; larger tensors say nothing about shapes, and only weigh.
LARGEST_READ = 1024

# Ops whose first output is like their first input, for which onnx infers nothing.
LIKE_THEIR_INPUT = {
    ("", "GroupNormalization"),
    ("", "MeanVarianceNormalization"),
    ("com.microsoft", "BiasGelu"),
    ("com.microsoft", "FastGelu"),
    ("com.microsoft", "Gelu"),
    ("com.microsoft", "QuickGelu"),
    ("com.microsoft", "SkipLayerNormalization"),
}

# Where no more than one in so many values is unknown, the others are not inferred again.
MOST_ALONE = 20

INFERRED = "inferred shape"
"""In the `meta` of an output: the shape that its operators give, whatever the file declares."""


def infer_shapes(model: ir.Model) -> None:
    """Write down every element type and shape that follows from the inputs; what is unknown stays unknown."""
    unsettled = [value for value in _values(model.graph) if not _is_settled(value)] if message.is_flat(model) else None
    if unsettled is not None and not unsettled:
        return  # onnx leaves what is known as it is, and every stage asks
    with no_collection():
        # Behind most edits little is unknown, and follows from what is not.
        if unsettled is not None and MOST_ALONE * len(unsettled) <= len(model.graph):
            part = _nodes_of(model, unsettled)
            if part is not None and _infer(part) and all(map(_is_settled, unsettled)):
                return
        _infer(model)


def are_settled(model: ir.Model) -> bool:
    """True if type and shape of every value are known, and no dimension is free."""
    return message.is_flat(model) and all(map(_is_settled, _values(model.graph)))


def _infer(model: ir.Model) -> bool:
    """Infer what is unknown in a model, or in a part of one; False if onnx stumbles over it."""
    proto = _stand_in(model)
    declared = {value: value.shape for value in model.graph.outputs if _is_result(value)}
    _forget_shapes(proto, {value.name or "" for value in declared})
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, IndexError):
        return False  # ONNX Runtime infers by rules of its own, and runs what those of onnx stumble over
    _copy_types(model.graph, inferred.graph)
    for value, shape in declared.items():
        value.shape = _merged(value.shape, shape)
    for value in filter(_is_result, model.graph.outputs):
        value.meta[INFERRED] = value.shape
    return True


def _nodes_of(model: ir.Model, values: Sequence[ir.Value]) -> ir.Model | None:
    """The nodes that compute these values, as a part of the model; None where one is no result of a node."""
    found = dict.fromkeys(value.producer() for value in values)
    nodes = [node for node in found if node is not None]
    if len(nodes) < len(found):
        return None
    read = (value for node in nodes for value in node.inputs if value is not None and not value.is_initializer())
    inputs = {value: None for value in read if value.producer() not in found}
    outputs = [value for node in nodes for value in node.outputs if value.is_graph_output()]
    return message.part(model, nodes, inputs, outputs)


def _is_result(value: ir.Value) -> bool:
    """True if the value is computed for the caller alone, so that nothing follows from the shape that it declares."""
    return value.producer() is not None and not value.uses() and isinstance(value.type, ir.TensorType)


def _forget_shapes(proto: onnx.ModelProto, names: set[str]) -> None:
    """Leave out the shapes that outputs declare: some files declare one that the operators do not give."""
    for info in proto.graph.output:
        if info.name in names:
            info.type.tensor_type.ClearField("shape")


def _merged(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """The inferred sizes, and the declared one where a size does not follow from the inputs."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return declared if inferred is None else inferred
    pairs = zip(inferred, declared, strict=True)
    return ir.Shape([found if isinstance(found, int) or _is_free(told) else told for found, told in pairs])


def _is_free(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and size.value is None


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def _is_settled(value: ir.Value) -> bool:
    """True if nothing more can be known of a value; what an output declares counts once it was inferred."""
    if value.type is None or value.shape is None or not value.shape.is_static():
        return False
    return not value.is_graph_output() or not _is_result(value) or value.meta.get(INFERRED) == value.shape


def _stand_in(model: ir.Model) -> onnx.ModelProto:
    """The model without its weights, and with nothing in it that onnx does not infer."""
    given = model if message.is_flat(model) else _light(model)
    tensors = {value: tensor for value in given.graph.initializers.values() if (tensor := _light_tensor(value))}
    result = message.of(given, tensors)
    for node in proto_check.nodes_of(result.graph.node):
        if (node.domain, node.op_type) in LIKE_THEIR_INPUT and not any(node.output[1:]):
            _make_identity(node)
    return result


def _light(model: ir.Model) -> ir.Model:
    """A copy without the weights, in bodies as well."""
    result = model.clone()
    for graph in result.graphs():
        for value in graph.initializers.values():
            value.const_value = _light_tensor(value) or value.const_value
    return result


def _light_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """A tensor without data in place of an initializer that is too large to be read; None for one that is read."""
    tensor = value.const_value
    return None if tensor is None or tensor.nbytes <= LARGEST_READ else external.hollow(tensor, value.name or "")


def _make_identity(node: onnx.NodeProto) -> None:
    node.domain, node.op_type = "", "Identity"
    del node.attribute[:], node.input[1:], node.output[1:]


def _copy_types(graph: ir.Graph, known: onnx.GraphProto) -> None:
    infos = (*known.input, *known.value_info, *known.output)
    found = {info.name: info.type for info in infos if not proto_check.holds_map(info.type)}
    for name, value in {value.name or "": value for value in _values(graph)}.items():
        if name in found:
            value.type = ir.serde.deserialize_type_proto_for_type(found[name]) or value.type
            shape = ir.serde.deserialize_type_proto_for_shape(found[name])
            value.shape = value.shape if shape is None else shared(shape)
        elif value.const_value is not None:
            value.type, value.shape = ir.TensorType(value.const_value.dtype), shape_of(value.const_value.shape.numpy())
    for node, same in zip(graph, known.node, strict=True):
        bodies = [body for attribute in same.attribute for body in _graphs(attribute)]
        for inner, known_inner in zip(query.bodies(node), bodies, strict=True):
            _copy_types(inner, known_inner)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
