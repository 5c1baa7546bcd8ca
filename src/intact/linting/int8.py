"""int8 activations: sessions that ONNX Runtime refuses because two of its passes disagree about a type."""

from __future__ import annotations

import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import Isolated, Severity, fence
from intact.matching.builder import Builder
from intact.model import query

# What ONNX Runtime's QDQPropagation moves a DequantizeLinear across.
_MOVERS = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")

# Readers of one tensor that become one node before that: parts of a Gelu, of a LayerNormalization.
_FUSED = (frozenset(("Div", "Mul")), frozenset(("ReduceMean", "Sub")))


class PropagatedInt8(Isolated):
    """A dequantized int8 tensor is moved without being quantized again, or multiplied and added to a vector.

    ONNX Runtime moves a DequantizeLinear across Reshape, Transpose, Squeeze, Unsqueeze, Slice and MaxPool: it writes
    a QuantizeLinear behind the node that says output_dtype = int8. On x86 its next pass makes the zero point uint8 and
    leaves output_dtype as it is, so that the two contradict each other. MatMul followed by the Add of a vector is
    affected too, where the input is no matrix: ONNX Runtime makes a Reshape and a Gemm of them.

    Measured (ONNX Runtime 1.31.1, opset 21 and later): the session does not load ("output_dtype INT8 does not match
    y_zero_point type UINT8"). Where two nodes read the moved tensor, or one that quantizes it, it loads, unless those
    two are equal or parts of a Gelu or a LayerNormalization, which become one node first, or move the tensor on.

    Fix: quantize the moved tensor again, on the same grid, and write the vector as a matrix of one row. `--fix` does
    both; neither changes a number, and the MatMul becomes an integer kernel.
    """

    code = "Q119"
    severity = Severity.ERROR
    since = 21
    ops = ("Add", *_MOVERS)
    remedy = "--fix quantizes a moved tensor again, on the same grid, and adds the vector as a matrix of one row"

    def fault(self, node: ir.Node) -> str | None:
        if node.op_type == "Add":
            product = _fused(node)
            return None if product is None else f"it is fused with {product.name}, which reads int8, behind a Reshape"
        source = _int8(node.inputs[0])
        moved = node.outputs[0]
        if source is None or not (_read_by_one(moved) or (moved.is_graph_output() and not moved.uses())):
            return None
        return f"what it moves is int8, from {source.name}, and is not quantized again"

    def fixable(self, node: ir.Node) -> bool:
        return len(node.outputs) == 1

    def check(self, node: ir.Node) -> str | None:
        return super().check(node) or (None if self.fixable(node) else "it has a second output")

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        if node.op_type == "Add":
            return _add(op, node)
        source = _int8(node.inputs[0])
        assert source is not None, "the check saw it"
        grid = source.inputs[1:]
        moved = op.like(node, *node.inputs)
        return op.DequantizeLinear(op.QuantizeLinear(moved, *grid), *grid)


def _read_by_one(moved: ir.Value) -> bool:
    """True if the moved tensor goes to one node that does not quantize it, or to several that become one or move it."""
    readers = [reader for reader, _ in moved.uses() if reader.op_type != "Shape"]
    kinds = frozenset(reader.op_type for reader in readers)
    if moved.is_graph_output() or "QuantizeLinear" in kinds or len(set(readers)) < len(readers):
        return False
    # A Transpose goes behind what moves the tensor on, for each of its readers in its own way.
    return len(kinds) == 1 or kinds in _FUSED or not kinds.isdisjoint(_MOVERS)


def _int8(value: ir.Value | None) -> ir.Node | None:
    """The DequantizeLinear behind a value that ONNX Runtime propagates and then makes unsigned, or None."""
    node = nearby.dequantizer(value)
    if node is None or node.domain != "" or query.is_constant(node.inputs[0]):
        return None
    zero_point = query.input_(node, 2)
    if zero_point is None or zero_point.dtype != ir.DataType.INT8:
        return None
    return node if query.is_scalar(node.inputs[1]) and query.is_scalar(zero_point) else None


def _fused(add: ir.Node) -> ir.Node | None:
    """The MatMul of int8 that ONNX Runtime makes a Reshape and a Gemm of, together with this Add, or None."""
    for value, vector in ((add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])):
        product = None if value is None else value.producer()
        if value is None or product is None or product.op_type != "MatMul" or query.only_consumer(value) is not add:
            continue
        rank, weight = query.rank(product.inputs[0]), query.static_shape(product.inputs[1])
        if rank in (None, 2) or weight is None or len(weight) != 2 or _int8(product.inputs[0]) is None:
            continue
        if query.static_shape(vector) == weight[1:]:
            return product
    return None


def _add(op: Builder, add: ir.Node) -> ir.Value:
    product = _fused(add)
    assert product is not None, "the check saw it"
    left, right = add.inputs
    value, vector = (left, right) if left is product.outputs[0] else (right, left)
    array = query.constant(vector)
    if array is None or query.rank(product.inputs[0]) == 1:
        return op.Add(fence(op, product.outputs[0]), vector)
    return op.Add(value, op.constant(array.reshape(1, -1), "row"))
