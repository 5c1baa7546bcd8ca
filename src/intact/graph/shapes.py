"""Element types and shapes of every value."""

from __future__ import annotations

import onnx.shape_inference
import onnx_ir as ir

from intact.errors import ModelError

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
    proto = ir.to_proto(_stand_in(model))
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, IndexError) as problem:
        raise ModelError(
            "M119", f"the shapes in the model cannot be worked out: {problem}", fix="export the model again"
        ) from problem
    for graph, known in zip(model.graphs(), ir.from_proto(inferred).graphs(), strict=True):
        _copy_types(graph, known)


def _stand_in(model: ir.Model) -> ir.Model:
    """A copy with the same shapes, without the weights, and with nothing in it that onnx does not infer."""
    result = model.clone()
    for graph in result.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.nbytes > LARGEST_READ:
                value.const_value = _hollow(value.const_value, value.name or "")
    for node in ir.traversal.RecursiveGraphIterator(result.graph):
        if (node.domain, node.op_type) in LIKE_THEIR_INPUT and not any(value.name for value in node.outputs[1:]):
            _make_identity(node)
    return result


def _hollow(tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
    """A tensor of the same type and shape that refers to a file which is never opened."""
    return ir.ExternalTensor("hollow", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def _make_identity(node: ir.Node) -> None:
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.resize_outputs(1)


def _copy_types(graph: ir.Graph, known: ir.Graph) -> None:
    found = ir.convenience.create_value_mapping(known)
    for name, value in ir.convenience.create_value_mapping(graph).items():
        if name not in found:
            continue
        if found[name].type is not None:
            value.type = found[name].type
        if found[name].shape is not None:
            value.shape = found[name].shape
