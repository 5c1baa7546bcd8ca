"""Operators that ONNX defines by others: their definitions as graphs."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx_ir import serde

from intact.model import normalize, query, shapes, upgrade


def definition(node: ir.Node, opset: int) -> ir.Graph | None:
    """The nodes that ONNX defines an operator by, for the types that it reads: a graph with its inputs and outputs.

    Inputs that are left out have no counterpart. None where ONNX defines it by nothing else, or by control flow.
    """
    schema = None if node.domain else upgrade.schema_of(node.op_type, opset)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    read = [value for value in node.inputs if value is not None]
    if any(value.type is None for value in read) or any(True for _ in query.bodies(node)):
        return None
    call = serde.serialize_node(node)
    del call.input[:], call.output[:]
    call.input.extend("" if value is None else f"in{at}" for at, value in enumerate(node.inputs))
    call.output.extend(f"out{at}" for at, _ in enumerate(node.outputs))
    inputs = [_described(f"in{at}", value) for at, value in enumerate(node.inputs) if value is not None]
    outputs = [_described(f"out{at}", value) for at, value in enumerate(node.outputs)]
    whole = onnx.helper.make_model(
        onnx.helper.make_graph([call], "definition", inputs, outputs),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
    )
    lacking = [("", node.op_type)]
    apart = onnx.inliner.inline_selected_functions(whole, lacking, inline_schema_functions=True)
    found = serde.deserialize_model(apart)
    normalize.lift_constants(found)
    shapes.infer_shapes(found)
    own = list(found.graph)
    plain = not any(one.op_type == node.op_type or any(True for _ in query.bodies(one)) for one in own)
    return found.graph if plain and all(upgrade.is_in(one, opset) for one in own) else None


def _described(name: str, value: ir.Value) -> onnx.ValueInfoProto:
    return serde.serialize_value(ir.Value(name=name, type=value.type, shape=value.shape))
