"""Check every node against the definition of its op, by ONNX or by a function of the model."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from intact.errors import ModelError
from intact.model import upgrade

# Attributes that onnx's own checker passes over.
INTERNAL_PREFIX = "__"
OBSOLETE = "consumed_inputs"


def check_nodes(model: ir.Model) -> None:
    """Refuse a node whose inputs, outputs or attributes do not fit the definition of its op, where there is one."""
    for body in upgrade.bodies_of(model):
        opset = body.opset_imports.get("", upgrade.MINIMUM)
        for node in ir.traversal.RecursiveGraphIterator(body):
            problem = next(_problems(node, model, opset), None)
            if problem is not None:
                raise ModelError(
                    "M118",
                    f"{node.name or 'a node'} ({node.op_type}): {problem}",
                    allowed=f"what opset {opset} or the model itself defines for {node.op_type}",
                    fix="export the model again, or import the opset that its nodes were written for",
                )


def _problems(node: ir.Node, model: ir.Model, opset: int) -> Iterator[str]:
    function = model.functions.get(node.op_identifier())
    if function is not None:
        yield from _call_problems(node, function)
        return
    schema = None if node.domain else upgrade.schema_of(node.op_type, opset)
    if schema is not None:
        yield from _schema_problems(node, schema)


def _call_problems(node: ir.Node, function: ir.Function) -> Iterator[str]:
    """A call may leave out the last inputs and outputs, but not add any."""
    if len(node.inputs) > len(function.inputs):
        yield f"it has {len(node.inputs)} inputs, the function {len(function.inputs)}"
    if len(node.outputs) > len(function.outputs):
        yield f"it has {len(node.outputs)} outputs, the function {len(function.outputs)}"


def _schema_problems(node: ir.Node, schema: onnx.defs.OpSchema) -> Iterator[str]:
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        yield f"it has {len(node.inputs)} inputs, not {schema.min_input} to {schema.max_input}"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        yield f"it has {len(node.outputs)} outputs, not {schema.min_output} to {schema.max_output}"
    for formal, value in zip(schema.inputs, node.inputs, strict=False):
        if value is None and formal.option == formal.option.Single:
            yield f"its input {formal.name} is missing"
    for attribute in node.attributes.values():
        yield from _attribute_problems(attribute, schema)
    for name, formal in schema.attributes.items():
        if formal.required and name not in node.attributes:
            yield f"its attribute {name} is missing"


def _attribute_problems(attribute: ir.Attr, schema: onnx.defs.OpSchema) -> Iterator[str]:
    if attribute.name.startswith(INTERNAL_PREFIX) or attribute.name == OBSOLETE:
        return
    formal = schema.attributes.get(attribute.name)
    if formal is None:
        yield f"it has an attribute {attribute.name!r}, which the op does not have"
    elif int(attribute.type) != formal.type.value:
        yield f"its attribute {attribute.name} is of type {attribute.type.name}, not {formal.type.name}"
