"""Faults planted in QDQ models, one at a time and by structure, as wrong tools and wrong rules make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

Plant = Callable[[onnx.ModelProto, onnx.NodeProto], bool]


def _initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def _give(model: onnx.ModelProto, node: onnx.NodeProto, index: int, array: np.ndarray) -> None:
    """Let one input of one node read another constant."""
    name = f"planted_{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    node.input[index] = name


def _constant(model: onnx.ModelProto, node: onnx.NodeProto, index: int) -> np.ndarray | None:
    if len(node.input) <= index or node.input[index] not in _initializers(model):
        return None
    return numpy_helper.to_array(_initializers(model)[node.input[index]])


def _producer(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    return next((node for node in model.graph.node if name in node.output), None)


def double_scale(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """The scale of one DequantizeLinear is twice what its integers were written with."""
    scale = _constant(model, node, 1) if node.op_type == "DequantizeLinear" else None
    if scale is None:
        return False
    _give(model, node, 1, scale * np.float32(2))
    return True


def shift_zero_point(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """The zero point of one DequantizeLinear is off by 10 levels of 8 bits (2,560 of 16)."""
    zero = _constant(model, node, 2) if node.op_type == "DequantizeLinear" else None
    if zero is None or zero.dtype == np.int32:
        return False
    step = 10 if zero.dtype.itemsize == 1 else 2560
    limits = np.iinfo(zero.dtype)
    moved = zero.astype(np.int64) + step
    _give(model, node, 2, np.where(moved > limits.max, zero.astype(np.int64) - step, moved).astype(zero.dtype))
    return True


def wrong_axis(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Scales of channels are laid along another axis of a weight of the same size."""
    if node.op_type != "DequantizeLinear":
        return False
    weight, scale = _constant(model, node, 0), _constant(model, node, 1)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    if weight is None or scale is None or scale.size == 1:
        return False
    other = next((i for i, size in enumerate(weight.shape) if i != axis % weight.ndim and size == scale.size), None)
    if other is None:
        return False
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("axis", other))
    return True


def drop_bias(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """A linear layer has lost its bias."""
    if node.op_type not in ("Conv", "Gemm", "ConvTranspose") or len(node.input) < 3:
        return False
    del node.input[2:]
    return True


def swap_operands(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """An operator that does not commute, or a product, reads its operands in the other order."""
    if node.op_type not in ("Sub", "Div", "MatMul") or len(node.input) != 2:
        return False
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return True


def clip_range(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """The grid of one activation covers a fifth of its range: the rest is cut off."""
    if node.op_type != "QuantizeLinear":
        return False
    scale = _constant(model, node, 1)
    reader = next((n for n in model.graph.node if node.output[0] in n.input and n.op_type == "DequantizeLinear"), None)
    if scale is None or scale.size != 1 or reader is None:
        return False
    for each in (node, reader):
        _give(model, each, 1, scale / np.float32(5))
    return True


FAULTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (double_scale, shift_zero_point, wrong_axis, drop_bias, swap_operands, clip_range)
}


def planted(model: onnx.ModelProto, kind: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """A copy of `model` with this fault at each node that can have it, and the node's name."""
    for index, node in enumerate(model.graph.node):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        if FAULTS[kind](copy, copy.graph.node[index]):
            yield node.name or f"{node.op_type}_{index}", copy
