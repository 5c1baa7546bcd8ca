"""Tells whether a model is quantized already, and to which types."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from intact.model import query
from intact.records import dataclass

_INTEGER_KERNELS = {
    "ConvInteger",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QGemm",
    "MatMulNBits",
    "QAttention",
}


@dataclass(frozen=True, slots=True)
class Quantized:
    """The marks of a quantized model: operators with their number, and the types of activations and weights."""

    operators: tuple[tuple[str, int], ...]
    activation_types: tuple[str, ...]
    weight_types: tuple[str, ...]

    def __str__(self) -> str:
        found = ", ".join(f"{count} {op}" for op, count in self.operators)
        types = "/".join(self.activation_types)
        return f"the model is already quantized ({found}{'; activations ' + types if types else ''})"


def detect(model: ir.Model) -> Quantized | None:
    """Find the quantized operators and types of a model; None for a float model."""
    found = [node for node in query.all_nodes(model) if _is_quantized(node)]
    if not found:
        return None
    activations, weights = Counter[str](), Counter[str]()
    for node in found:
        for value in _data(node):
            (weights if query.is_constant(value) else activations).update([_type(value)])
    operators = Counter(node.op_type for node in found)
    return Quantized(tuple(sorted(operators.items())), _common(activations), _common(weights))


def _is_quantized(node: ir.Node) -> bool:
    if node.op_type == "EPContext" or node.op_type in _INTEGER_KERNELS or node.op_type.startswith("QLinear"):
        return True
    return node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def _data(node: ir.Node) -> list[ir.Value]:
    """Values of a node that are on a grid; scales and zero points are not data."""
    if node.op_type == "QuantizeLinear":
        return [node.outputs[0]]
    if node.op_type == "DequantizeLinear":
        return [v for v in node.inputs[:1] if v is not None and query.is_constant(v)]
    data = [v for v in (query.input_(node, 0), query.input_(node, 3)) if v is not None]
    static = node.op_type.startswith("QLinear") or node.op_type == "QGemm"
    return [v for v in data if query.is_quantized(v)] if static else []


def _type(value: ir.Value) -> str:
    return value.dtype.name.lower() if value.dtype is not None else "unknown"


def _common(types: Counter[str]) -> tuple[str, ...]:
    """The types that occur, the most frequent first; int32 is that of biases."""
    return tuple(name for name, _ in types.most_common() if name not in ("int32", "unknown"))
