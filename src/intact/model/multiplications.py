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


def multiply_adds(node: ir.Node, lanes: int = 1) -> int:
    """The number of products that a node adds up; operators that are no products of matrices have none.

    Where `lanes` channels are multiplied at once, those that are missing count, too.
    """
    first, second = query.input_(node, 0), query.input_(node, 1)
    if first is None or second is None or not second.shape or not first.shape:
        return 0
    if node.op_type in _PRODUCTS:
        inner = -2 if query.int_(node, "transA", 0) else -1
        depth = first.shape[inner] if len(first.shape) >= -inner else 1
        results = _filled_along(node.outputs[0], -1, lanes)
        return results * filled(depth if isinstance(depth, int) else 1, lanes)
    if node.op_type == "Conv":
        results = elements(node.outputs[0])
        if query.int_(node, "group", 1) == 1:
            results = _filled_along(node.outputs[0], 1, lanes)
        return results * _filled_along(second, 1, lanes) // _size(second, 0)
    if node.op_type == "ConvTranspose":
        return _filled_along(first, 1, lanes) * elements(second) // _size(second, 0)
    return 0


def filled(count: int, lanes: int) -> int:
    """A count of channels, brought to a multiple of `lanes`."""
    return -(-count // lanes) * lanes


def _filled_along(value: ir.Value, axis: int, lanes: int) -> int:
    """The values of a tensor whose axis is filled up."""
    rank = len(value.shape) if value.shape is not None else 0
    size = _size(value, axis) if -rank <= axis < rank else 1
    return elements(value) // size * filled(size, lanes)


def _size(value: ir.Value, axis: int) -> int:
    size = value.shape[axis] if value.shape is not None else 1
    return size if isinstance(size, int) and size > 0 else 1
