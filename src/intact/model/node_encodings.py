"""The grids of Q and DQ nodes, read from a model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.encoding import Encoding, dequantize


def encoding_of(node: ir.Node) -> Encoding | None:
    """The grid of a Q or DQ, or None where its scale or zero point is computed or its type is no integer.

    A single scale is a scalar without an axis, unless the node itself names one.
    """
    scale, point = query.constant(node.inputs[1]), query.input_(node, 2)
    zeros, dtype = query.constant(point), integer_type(node)
    if scale is None or (point is not None and zeros is None) or not dtype.is_integer():
        return None
    shaped = scale.ndim > 0 and (scale.size > 1 or "axis" in node.attributes)
    axis = query.int_(node, "axis", 1) if shaped else None
    shape = scale.shape if shaped else ()
    points = np.zeros((), np.int64) if zeros is None else zeros.astype(np.int64)
    points = points.reshape(()) if points.size == 1 else points
    # Most have the shape already, and numpy takes long to find that out.
    zero_point = points if points.shape == shape else np.broadcast_to(points, shape)
    return Encoding(dtype.name.lower(), scale.reshape(shape), zero_point, axis, query.int_(node, "block_size", 0))


def has_encoding(node: ir.Node) -> bool:
    """True if `encoding_of` finds a grid."""
    point = query.input_(node, 2)
    is_constant = query.is_constant(node.inputs[1]) and (point is None or query.is_constant(point))
    return is_constant and integer_type(node).is_integer()


def constant_behind(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant, or what a DequantizeLinear makes of constants, or None for anything else."""
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "DequantizeLinear":
        return query.constant(value)
    integers, encoding = query.constant(producer.inputs[0]), encoding_of(producer)
    return None if integers is None or encoding is None else dequantize(integers, encoding)


def integer_type(node: ir.Node) -> ir.DataType:
    """The type of the integers that a Q writes or a DQ reads; files often leave it to the zero point to tell."""
    point = query.input_(node, 2)
    tensor = query.constant_tensor(point)
    told = tensor.dtype if tensor is not None else None if point is None else point.dtype
    if told is not None:
        return told
    asked = query.int_(node, "output_dtype", 0)
    integers = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    known = None if integers is None else integers.dtype
    return ir.DataType(asked) if asked else known or ir.DataType.UINT8
