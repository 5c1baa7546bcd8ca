"""The size of the work of a node: the products that it adds up, and the values of its tensors."""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.model import query

_PRODUCTS = ("MatMul", "Gemm")


def elements(value: ir.Value | None) -> int:
    """The number of values in a tensor; a dimension that is not known counts as 1."""
    if value is None or value.shape is None:
        return 1
    return math.prod(size if isinstance(size, int) else 1 for size in value.shape)


def multiply_adds(node: ir.Node) -> int:
    """The number of products that a node adds up; operators that are no products of matrices have none."""
    first, second = query.input_(node, 0), query.input_(node, 1)
    if first is None or second is None or not second.shape or not first.shape:
        return 0
    if node.op_type in _PRODUCTS:
        inner = -2 if query.int_(node, "transA", 0) else -1
        depth = first.shape[inner] if len(first.shape) >= -inner else 1
        return elements(node.outputs[0]) * (depth if isinstance(depth, int) else 1)
    if node.op_type == "Conv":
        return elements(node.outputs[0]) * elements(second) // _size(second, 0)
    if node.op_type == "ConvTranspose":
        return elements(first) * elements(second) // _size(second, 0)
    return 0


def _size(value: ir.Value, axis: int) -> int:
    size = value.shape[axis] if value.shape is not None else 1
    return size if isinstance(size, int) and size > 0 else 1
