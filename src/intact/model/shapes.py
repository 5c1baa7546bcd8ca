"""Element types and shapes of every value."""

from __future__ import annotations

import onnx
import onnx.shape_inference
import onnx_ir as ir

from intact.model import external, proto_check, query
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


def infer_shapes(model: ir.Model) -> None:
    """Write down every element type and shape that follows from the inputs; what is unknown stays unknown."""
    with no_collection():
        proto = ir.to_proto(_stand_in(model))
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, IndexError):
            return  # ONNX Runtime infers by rules of its own, and runs what those of onnx stumble over
        _copy_types(model.graph, inferred.graph)


def _stand_in(model: ir.Model) -> ir.Model:
    """A copy with the same shapes, without the weights, and with nothing in it that onnx does not infer."""
    result = model.clone()
    for graph in result.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.nbytes > LARGEST_READ:
                value.const_value = external.hollow(value.const_value, value.name or "")
    for node in ir.traversal.RecursiveGraphIterator(result.graph):
        if (node.domain, node.op_type) in LIKE_THEIR_INPUT and not any(value.name for value in node.outputs[1:]):
            _make_identity(node)
    return result


def _make_identity(node: ir.Node) -> None:
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.resize_outputs(1)


def _copy_types(graph: ir.Graph, known: onnx.GraphProto) -> None:
    infos = (*known.input, *known.value_info, *known.output)
    found = {info.name: info.type for info in infos if not proto_check.holds_map(info.type)}
    for name, value in ir.convenience.create_value_mapping(graph, include_subgraphs=False).items():
        if name in found:
            value.type = ir.serde.deserialize_type_proto_for_type(found[name]) or value.type
            shape = ir.serde.deserialize_type_proto_for_shape(found[name])
            value.shape = value.shape if shape is None else shape
        elif value.const_value is not None:
            value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(value.const_value.shape.numpy())
    for node, same in zip(graph, known.node, strict=True):
        bodies = [body for attribute in same.attribute for body in _graphs(attribute)]
        for inner, known_inner in zip(query.bodies(node), bodies, strict=True):
            _copy_types(inner, known_inner)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
