"""Products of uint8 and int8 on processors whose kernels add pairs of them in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import UNAFFECTED, Check, Finding, Severity
from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import query
from intact.numbers.integer import INT16_MAX, largest_pair
from intact.runtime import host_cpu

MICROSOFT = "com.microsoft"


class _Places(NamedTuple):
    """The inputs of an integer operator: its weight, the scale and zero point of that, the activations' zero point."""

    weight: int
    scale: int | None
    zero_point: int
    data_zero_point: int = 2


_FUSED = ("Conv", "MatMul", "Gemm")
_INTEGER: Mapping[tuple[str, str], _Places] = {
    ("", "QLinearConv"): _Places(3, 4, 5),
    ("", "ConvInteger"): _Places(1, None, 3),
    ("", "QLinearMatMul"): _Places(3, 4, 5),
    ("", "MatMulInteger"): _Places(1, None, 3),
    (MICROSOFT, "QGemm"): _Places(3, 4, 5),
    (MICROSOFT, "MatMulIntegerToFloat"): _Places(1, 3, 5, 4),
}


class SaturatedSums(Check, Rule):
    """Sums of two products with an int8 weight do not fit in the 16 bits that this processor adds them in.

    On x86 without VNNI the kernels of ONNX Runtime for uint8 × int8 add two products at a time in saturating int16:
    255 · 127 + 255 · 127 is cut off at 32767. It takes int8 activations for uint8 ones there, so that they are
    affected, too. Nothing is wrong with the model: it gives other numbers on such a processor, once ONNX Runtime has
    fused its products into integer kernels, or where it has those from the start.

    Measured (ONNX Runtime 1.31.1, AVX2): products by weights over the whole range of int8 are up to 12 steps of their
    output off.

    Fix: quantize weights to 7 bits, or as uint8 around 128: kernels for uint8 × uint8 are exact on every processor.
    `--fix` writes the same weights as uint8, with zero points that are 128 higher; no number changes.
    """

    code = "Q124"
    severity = Severity.ERROR
    exactness = EXACT
    remedy = "--fix writes the weight as uint8, 128 higher, and so its zero points: no number changes"

    def __init__(self, saturates: bool | None = None) -> None:
        self.saturates = saturates

    def find(self, model: ir.Model) -> Iterator[Finding]:
        """Every product that may saturate, where the processor, this one unless something else was said, does that."""
        return super().find(model) if self._is_due() else iter(())

    def fault(self, node: ir.Node) -> str | None:
        weight, axis = _weight(node), _channel_axis(node)
        largest = 0 if weight is None else largest_pair(weight, axis)
        if largest <= INT16_MAX:
            return None
        return f"a sum of two products may reach {largest}; without VNNI it is cut off at {INT16_MAX}"

    def pattern(self, op: Patterns, inputs: Var | None = None) -> Roots:
        every = op.each(inputs)
        patterns = [op.node(("DequantizeLinear",), every, _domain=domain, _name="node") for domain in nearby.DOMAINS]
        patterns += [op.node((name,), every, _domain=domain, _name="node") for domain, name in _INTEGER]
        return op.any_of(*patterns)

    def check(self, node: ir.Node) -> str | None:
        # All products that share a weight keep on sharing it.
        products = query.consumers(node.outputs[0]) if node.op_type == "DequantizeLinear" else (node,)
        affected = self._is_due() and any(self._reads(product, node) and self.fault(product) for product in products)
        return None if affected else UNAFFECTED

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        places = _INTEGER.get((node.domain, node.op_type), _Places(0, 1, 2))
        inputs = [query.input_(node, index) for index in range(max(len(node.inputs), places.zero_point + 1))]
        weight, zeros = query.known_constant(inputs[places.weight]), query.constant(inputs[places.zero_point])
        if zeros is None:
            scales = None if places.scale is None else query.constant(inputs[places.scale])
            zeros = np.zeros(() if scales is None else scales.shape, np.int8)
        inputs[places.weight] = op.constant(_unsigned(weight), "weight")
        inputs[places.zero_point] = op.constant(_unsigned(zeros), "zero_point")
        return op.like(node, *inputs)

    def _is_due(self) -> bool:
        return host_cpu.adds_pairs_in_16_bits() if self.saturates is None else self.saturates

    def _reads(self, product: ir.Node, node: ir.Node) -> bool:
        """True if a product has its weight from the node, or is the node itself."""
        return product is node or (len(product.inputs) > 1 and product.inputs[1] is node.outputs[0])


def _unsigned(integers: np.ndarray) -> np.ndarray:
    return np.asarray(integers.astype(np.int16) + 128).astype(np.uint8)


def _weight(node: ir.Node) -> np.ndarray | None:
    """The constant int8 weight that a kernel multiplies with uint8, or None."""
    places = _INTEGER.get((node.domain, node.op_type))
    if places is not None:
        integers, zero_point = query.input_(node, places.weight), query.input_(node, places.zero_point)
        return _constant(integers, zero_point) if _is_unsigned(node, places) else None
    if node.domain or node.op_type not in _FUSED or not _becomes_kernel(node):
        return None
    weight = nearby.dequantizer(node.inputs[1])
    if weight is None or nearby.block_size(weight):
        return None
    return _constant(weight.inputs[0], query.input_(weight, 2))


def _constant(weight: ir.Value | None, zero_point: ir.Value | None) -> np.ndarray | None:
    """A weight of int8, if it is known and so are its zero points."""
    integers = query.constant(weight)
    known = zero_point is None or query.is_constant(zero_point)
    return integers if integers is not None and integers.dtype == np.int8 and known else None


def _is_unsigned(node: ir.Node, places: _Places) -> bool:
    """True if an integer operator has activations of uint8; their zero point tells where their type is unknown."""
    given = (node.inputs[0], query.input_(node, places.data_zero_point))
    known = [value.dtype for value in given if value is not None and value.dtype is not None]
    return ir.DataType.UINT8 in known


def _becomes_kernel(node: ir.Node) -> bool:
    """True if ONNX Runtime makes an integer kernel of a product in float."""
    if not nearby.reads_8_bits(node.inputs[0]) or any(map(nearby.is_half, node.inputs[:2])):
        return False
    return node.op_type != "Conv" or any(nearby.readers_of_8_bits(node))


def _channel_axis(node: ir.Node) -> int:
    """The axis of a weight that has the channels of the output."""
    if node.op_type in ("Gemm", "QGemm"):
        return 0 if query.int_(node, "transB", 0) else 1
    return 0 if "Conv" in node.op_type else -1
