"""Quantities of a node that conditions are about, as they can be read in a model: steps, ends of grids, sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx_ir as ir

from intact.model import query, upgrade
from intact.numbers.integer_types import limits
from intact.targets.operands import NodeOperand, Use

Quantity = float | str
RESULT = "the result"
# Operators that multiply their first two inputs: a step of one is worth that many of the result only with the other's.
_MULTIPLYING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Mul"})
# Constants of more numbers than this are weights and tables, not arguments.
_MOST_ARGUMENTS = 16


def input_name(index: int) -> str:
    """The words for an input."""
    return f"input {index}"


def grid_quantities(use: Use) -> dict[str, Quantity]:
    """Quantities of the grids that a node reads and writes."""
    found: dict[str, Quantity] = {}
    places = [*enumerate(use.inputs), (None, use.outputs[0] if use.outputs else None)]
    for index, operand in places:
        if operand is None or operand.scale is None or operand.zero_point is None or operand.type == "int32":
            continue
        name = RESULT if index is None else input_name(index)
        found[f"scale of {name}"] = _step(operand)
        found[f"share below 0 of the grid of {name}"] = _share_below(operand)
        relative = None if index is None else _relative_step(use, index, operand)
        if relative is not None:
            found[f"steps of {name} as a multiple of those of the result"] = relative
        room = None if index is None else _room(use.node.inputs[index], operand)
        if room is not None:
            found[f"grid of {name} as a multiple of what its values need"] = room
    return found


def shape_quantities(use: Use) -> dict[str, Quantity]:
    """Sizes of the inputs of a node, its attributes, and small constants that it reads as they are."""
    found: dict[str, Quantity] = {}
    for index, (operand, value) in enumerate(zip(use.inputs, use.node.inputs, strict=False)):
        if operand is None or value is None:
            continue
        shape = _shape(value)
        given = None if operand.on_grid else query.constant(value)
        if given is not None and given.size <= _MOST_ARGUMENTS:
            found[input_name(index)] = str(given.ravel().tolist())
            continue
        if shape is None:
            continue
        found[f"rank of {input_name(index)}"] = float(len(shape))
        found |= {f"size {axis} of {input_name(index)}": float(size) for axis, size in enumerate(shape)}
    for name, attribute in use.node.attributes.items():
        if attribute.type != ir.AttributeType.GRAPH:
            found[name] = _written(attribute)
    return _defaults(use) | found


def _defaults(use: Use) -> dict[str, Quantity]:
    """The attributes that a node leaves to what ONNX says, so that it reads like one that says them."""
    return dict(_defaults_of(use.op)) if not use.domain else {}


@cache
def _defaults_of(op: str) -> Mapping[str, Quantity]:
    schema = upgrade.schema_of(op, upgrade.MINIMUM)
    given = {} if schema is None else {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
    return {name: _written(ir.serde.deserialize_attribute(value)) for name, value in given.items()}


def _written(attribute: ir.Attr) -> str:
    value = attribute.value
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


def _step(operand: NodeOperand) -> float:
    assert operand.scale is not None, "what is on a grid has a scale"
    return float(operand.scale.max(initial=0.0))


def _share_below(operand: NodeOperand) -> float:
    assert operand.zero_point is not None, "what is on a grid has a zero point"
    low, high = limits(operand.type)
    return round(float(operand.zero_point.reshape(-1)[0] - low) / (high - low), 3)


def _relative_step(use: Use, index: int, operand: NodeOperand) -> float | None:
    """A step of an input in steps of the result; without a grid there, in those of the finest other input."""
    others = [(i, one) for i, one in enumerate(use.inputs) if one is not None and one.on_grid and i != index]
    others = [(i, one) for i, one in others if one.type != "int32"]
    output = use.outputs[0] if use.outputs else None
    if output is not None and output.on_grid:
        multiplied = use.op in _MULTIPLYING and index < 2
        factor = math.prod(_step(one) for i, one in others if i < 2) if multiplied else 1.0
        finest = _step(output)
    else:
        factor, finest = 1.0, min((_step(one) for _, one in others), default=0.0)
    return _step(operand) * factor / finest if finest > 0 else None


def _room(value: ir.Value | None, operand: NodeOperand) -> float | None:
    """The reach of the grid of a constant, as a multiple of the greatest number that is on it."""
    producer = None if value is None or not operand.constant else value.producer()
    stored = None if producer is None else query.constant(producer.inputs[0])
    if stored is None or operand.zero_point is None or operand.zero_point.size != 1:
        return None
    zero = int(operand.zero_point.reshape(()))
    used = np.abs(stored.astype(np.int64) - zero).max(initial=0)
    return float(max(zero - limits(operand.type)[0], limits(operand.type)[1] - zero) / used) if used else None


def _shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape of a value; conversions before it do not change it."""
    producer = value.producer()
    found = query.static_shape(value)
    is_converted = producer is not None and producer.op_type in ("QuantizeLinear", "DequantizeLinear")
    if found is not None or producer is None or not is_converted or producer.inputs[0] is None:
        return found
    return _shape(producer.inputs[0])
