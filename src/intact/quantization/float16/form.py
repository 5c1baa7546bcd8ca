"""Find the inputs and outputs of a node that may be in half precision, by the definition of its operator."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from intact.model import query, upgrade
from intact.records import dataclass

# Attributes that fix the type of an output; Cast and ConstantOfShape are rewritten, the rest is left alone.
_TYPED = frozenset({"dtype", "output_datatype"})
_HALF = "tensor(float16)"


@dataclass(frozen=True, slots=True)
class Form:
    """The float32 inputs and outputs of a node that may be half; `refusal` says why none may."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    refusal: str | None = None


def form_of(node: ir.Node, opset: int) -> Form | None:
    """The form of a node that reads or writes float32, or None for one that does not."""
    inputs = [index for index, value in enumerate(node.inputs) if _is_single(value)]
    outputs = [index for index, value in enumerate(node.outputs) if _is_single(value)]
    bodies = list(query.bodies(node))
    if not inputs and not outputs and not bodies:
        return None
    refusal = _refusal(node, bool(bodies))
    if refusal is not None:
        return Form(refusal=refusal)
    schema = None if node.domain else upgrade.schema_of(node.op_type, opset)
    if schema is None:
        return Form(refusal=f"{node.domain or 'ONNX'} defines no types for {node.op_type} that are known here")
    halves = {
        constraint.type_param_str for constraint in schema.type_constraints if _HALF in constraint.allowed_type_strs
    }
    read, written = ([formal.type_str for formal in formals] for formals in (schema.inputs, schema.outputs))
    form = Form(
        frozenset(index for index in inputs if _formal(read, index) in halves),
        frozenset(index for index in outputs if _formal(written, index) in halves),
    )
    return form if form.inputs or form.outputs else Form(refusal=f"{node.op_type} is defined for float32 only")


def _is_single(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType)


def _refusal(node: ir.Node, has_bodies: bool) -> str | None:
    if has_bodies:
        return f"{node.op_type} has graphs of its own"
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    unknown = [value.name for value in values if value.dtype is None or not isinstance(value.type, ir.TensorType)]
    if unknown:
        return f"{unknown[0]} is not a tensor of a known type"
    fixed = sorted(_TYPED & set(node.attributes))
    return f"its attribute {fixed[0]} says its type" if fixed else None


def _formal(types: Sequence[str], index: int) -> str:
    """The type parameter of an input or output; the last one may repeat."""
    return types[min(index, len(types) - 1)]
