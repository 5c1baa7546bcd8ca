"""Element types and shapes of every value."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common as passes

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
    if not any(_is_like_its_input(node) for node in ir.traversal.RecursiveGraphIterator(model.graph)):
        _infer(model)
        return
    stand_in = model.clone()
    for node in ir.traversal.RecursiveGraphIterator(stand_in.graph):
        if _is_like_its_input(node):
            _make_identity(node)
    _infer(stand_in)
    for graph, inferred in zip(model.graphs(), stand_in.graphs(), strict=True):
        known = ir.convenience.create_value_mapping(inferred)
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if name in known:
                value.type, value.shape = known[name].type, known[name].shape


def _infer(model: ir.Model) -> None:
    passes.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def _is_like_its_input(node: ir.Node) -> bool:
    others = node.outputs[1:]
    return (node.domain, node.op_type) in LIKE_THEIR_INPUT and not any(value.name for value in others)


def _make_identity(node: ir.Node) -> None:
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.resize_outputs(1)
