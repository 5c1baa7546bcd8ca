"""Readers of the grids around a node: which DequantizeLinear it reads, which QuantizeLinear reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers import integer
from intact.numbers.encoding import along
from intact.numbers.integer_types import BYTE_STEPS

DOMAINS = ("", "com.microsoft")
"""The domains of QuantizeLinear and DequantizeLinear: ONNX Runtime had its own before ONNX had them."""

# Where operators that compute on integers have their scales; QLinearConcat has as many as inputs.
_SCALES: Mapping[str, Sequence[int]] = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QLinearAdd": (1, 4, 6),
    "QLinearMul": (1, 4, 6),
    "QGemm": (1, 4, 7),
    "QLinearSigmoid": (1, 3),
    "QLinearLeakyRelu": (1, 3),
    "QLinearSoftmax": (1, 3),
    "QLinearAveragePool": (1, 3),
    "QLinearGlobalAveragePool": (1, 3),
    "MatMulIntegerToFloat": (2, 3),
    "QLinearReduceMean": (1, 3),
    "QLinearWhere": (2, 5, 7),
    "DynamicQuantizeMatMul": (2,),
    "MatMulNBits": (2,),
}


def scale_inputs(node: ir.Node) -> Sequence[int]:
    """The positions of those inputs of a node that are scales."""
    return range(0, len(node.inputs), 3) if node.op_type == "QLinearConcat" else _SCALES.get(node.op_type, ())


def dequantizer(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear that the value comes from, or None."""
    return _producer(value, "DequantizeLinear")


def quantizer(value: ir.Value | None) -> ir.Node | None:
    """The QuantizeLinear that the value comes from, or None."""
    return _producer(value, "QuantizeLinear")


def quantizers_of(value: ir.Value) -> Iterator[ir.Node]:
    """The QuantizeLinear nodes that read the value as data."""
    for node, index in value.uses():
        if index == 0 and node.op_type == "QuantizeLinear" and node.domain in DOMAINS:
            yield node


def readers_of_8_bits(node: ir.Node) -> Iterator[ir.Node]:
    """The QuantizeLinear nodes that take a result to 8 bits, perhaps behind a Relu or Clip, which a grid absorbs.

    There are none where something else reads the result, too: ONNX Runtime does not fuse such a node.
    """
    users = query.consumers(node.outputs[0])
    clips = [user for user in users if user.op_type in ("Relu", "Clip")]
    if node.outputs[0].is_graph_output() or len(clips) + len([*quantizers_of(node.outputs[0])]) < len(users):
        return
    for end in (node, *clips):
        yield from (reader for reader in quantizers_of(end.outputs[0]) if bits(reader) == 8)


def dtype(node: ir.Node) -> ir.DataType | None:
    """The type that a DequantizeLinear reads or a QuantizeLinear writes, or None if unknown."""
    value = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
    return value.dtype if value is not None and value.dtype is not None else _zero_point_type(node)


def bits(node: ir.Node) -> int | None:
    """The bits of the integers that a DequantizeLinear reads or a QuantizeLinear writes, or None if unknown."""
    found = dtype(node)
    return None if found is None or not found.is_integer() else int(found.bitwidth)


def reads_8_bits(value: ir.Value | None) -> bool:
    """True if the value is dequantized from 8-bit integers: what the integer kernels of ONNX Runtime take."""
    node = dequantizer(value)
    return node is not None and bits(node) == 8


def is_half(value: ir.Value | None) -> bool:
    """True if the value is float16, or dequantized to it."""
    source = dequantizer(value)
    real = value if source is None else source.inputs[1]
    return real is not None and real.dtype == ir.DataType.FLOAT16


def count(node: ir.Node) -> int:
    """The number of scales of a QuantizeLinear or DequantizeLinear; one where that is unknown."""
    shape = query.static_shape(query.input_(node, 1))
    return 1 if shape is None else int(np.prod(shape, dtype=np.int64))


def axis(node: ir.Node) -> int | None:
    """The axis of the scales, counted from the front; None where the rank is unknown."""
    at, dimensions = query.int_(node, "axis", 1), rank(node)
    if at >= 0:
        return at
    return None if dimensions is None else at + dimensions


def rank(node: ir.Node) -> int | None:
    """The number of dimensions of what a QuantizeLinear or DequantizeLinear reads, or None if unknown."""
    source = quantizer(node.inputs[0])
    known = query.rank(node.inputs[0])
    return rank(source) if known is None and source is not None else known


def block_size(node: ir.Node) -> int:
    """The number of values that share a scale along the axis, or 0."""
    return query.int_(node, "block_size", 0)


def scale(node: ir.Node) -> np.ndarray | None:
    """The scales as float64, or None where they are computed."""
    array = query.constant(query.input_(node, 1))
    return None if array is None else array.astype(np.float64)


def zero_point(node: ir.Node) -> np.ndarray | None:
    """The zero points as int64, zero where the node has none, or None where they are computed."""
    value = query.input_(node, 2)
    if value is None:
        scales = query.constant(query.input_(node, 1))
        return None if scales is None else np.zeros(scales.shape, np.int64)
    array = query.constant(value)
    return None if array is None else array.astype(np.int64)


def integers(node: ir.Node) -> np.ndarray | None:
    """The constant integers that a DequantizeLinear reads as int64, or None."""
    array = query.constant(node.inputs[0])
    return None if array is None else array.astype(np.int64)


def centred(node: ir.Node) -> np.ndarray | None:
    """The constant integers that a DequantizeLinear reads, less their zero points, or None."""
    stored, zeros = integers(node), zero_point(node)
    if stored is None or zeros is None:
        return None
    return np.asarray(stored - along(zeros, stored.shape, axis(node) or 0, block_size(node)))


def reach(node: ir.Node) -> int:
    """The greatest distance of an 8-bit integer that a DequantizeLinear reads from its zero point."""
    kind, zeros = dtype(node), zero_point(node)
    if kind is None or zeros is None:
        return BYTE_STEPS
    return int(max(zeros.max() - kind.min, kind.max - zeros.min()))


def constant_reals(value: ir.Value | None) -> np.ndarray | None:
    """The floats that a constant behind a DequantizeLinear stands for, as that node computes them, or None.

    Numbers on a grid that cannot be used stand for nothing.
    """
    node = dequantizer(value)
    if node is None:
        return None
    stored, scales = query.constant(node.inputs[0]), query.constant(node.inputs[1])
    zeros = query.constant(query.input_(node, 2))
    at = axis(node)
    if stored is None or scales is None or at is None or (zeros is None and query.input_(node, 2) is not None):
        return None
    if scales.dtype != np.float32 or not (np.isfinite(scales) & (scales > 0)).all():
        return None
    return integer.dequantize_linear(stored, scales, zeros, axis=at, block_size=block_size(node))


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type and node.domain in DOMAINS else None


def _zero_point_type(node: ir.Node) -> ir.DataType | None:
    value = query.input_(node, 2)
    return None if value is None else value.dtype
