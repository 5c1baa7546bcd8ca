"""Weights of few bits beside float activations."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.linting import nearby
from intact.linting.check import UNAFFECTED, Check, Severity
from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query
from intact.numbers.integer_types import limits

# What ONNX Runtime uses for a weight that has no blocks of its own.
_BLOCK = 32
_LEAST_BLOCK = 16
# Multiplies floats with floats; 4, the default of ONNX Runtime, quantizes the activations to int8.
_FLOAT_ACCURACY = 1


class WeightOnlyMatMul(Check, Rule):
    """A MatMul(x, DQ(w)) with a float x, whose activations ONNX Runtime quantizes to int8 unasked.

    DequantizeLinear(weight) → MatMul becomes MatMulNBits with accuracy level 4, which rounds the activations to
    int8 in blocks. Nothing in the model asks for that, and ORT_DISABLE_ALL does not show it.

    Measured (ONNX Runtime 1.31.1): an error of 1 to 3 % of the outputs' standard deviation for 8-bit as for 4-bit
    weights (9e-3 on σ ≈ 0.5).

    Fix: `--fix` writes the MatMulNBits itself (domain com.microsoft), with accuracy level 1: it computes in float32,
    keeps the weight in few bits, and stays within 1e-6 of the largest output, the rounding of float32 sums (beside
    float16 activations, that of float16). Without it, set the session option session.qdq_matmulnbits_accuracy_level
    to 1.
    """

    code = "Q109"
    severity = Severity.WARNING
    remedy = "--fix writes MatMulNBits with accuracy level 1, which computes in float32"
    exactness = BOUNDED
    creates = (("com.microsoft", "MatMulNBits"),)
    ops = ("MatMul", "Gemm")

    def fault(self, node: ir.Node) -> str | None:
        weight = nearby.dequantizer(node.inputs[1])
        if weight is None or nearby.dequantizer(node.inputs[0]) is not None or not query.is_float(node.inputs[0]):
            return None
        if not _is_plain(node) or not _is_packable(weight):
            return None
        return (
            f"its activations are float and its weight has {nearby.bits(weight)} bits: ONNX Runtime will compute with "
            f"int8 activations"
        )

    def pattern(self, op: Patterns, inputs: Var | None = None) -> Roots:
        return op.node(self.ops, op.each(inputs), _name="node")

    def check(self, node: ir.Node) -> str | None:
        return UNAFFECTED if self.fault(node) is None else None

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        weight = nearby.dequantizer(node.inputs[1])
        assert weight is not None, "the check saw it"
        size = nearby.block_size(weight) or _BLOCK
        levels, scales, zeros, bits = _unsigned(weight, size)
        rows, columns = levels.shape
        blocks = scales.shape[0]
        padded = np.zeros((blocks * size, columns), np.int64)
        padded[:rows] = levels
        return op.MatMulNBits(
            node.inputs[0],
            op.constant(_packed(padded.T.reshape(columns, blocks, size), bits), "weight"),
            op.constant(np.ascontiguousarray(scales.T).reshape(-1), "weight_scale"),
            op.constant(_packed(zeros.T, bits).reshape(-1), "weight_zero_point"),
            None,
            query.input_(node, 2),
            _domain="com.microsoft",
            K=rows,
            N=columns,
            bits=bits,
            block_size=size,
            accuracy_level=_FLOAT_ACCURACY,
        )


def _is_plain(node: ir.Node) -> bool:
    """True if the node is a product with nothing but a bias of one number for each column."""
    if node.op_type == "MatMul":
        return True
    bias = query.input_(node, 2)
    factors = query.float_(node, "alpha", 1.0) == 1.0 == query.float_(node, "beta", 1.0)
    return factors and not query.int_(node, "transA", 0) and not query.int_(node, "transB", 0) and _is_row(bias)


def _is_row(bias: ir.Value | None) -> bool:
    return bias is None or (query.rank(bias) == 1 and nearby.dequantizer(bias) is None)


def _is_packable(weight: ir.Node) -> bool:
    """True if the weight is a constant matrix of 4 or 8 bits with scales that MatMulNBits can hold."""
    stored, scales = query.constant_tensor(weight.inputs[0]), query.constant(weight.inputs[1])
    if stored is None or scales is None or len(stored.shape) != 2 or scales.dtype not in (np.float32, np.float16):
        return False
    size = nearby.block_size(weight)
    if nearby.zero_point(weight) is None or not (np.isfinite(scales) & (scales > 0)).all():
        return False
    if nearby.bits(weight) not in (4, 8) or (size and (size < _LEAST_BLOCK or size & (size - 1))):
        return False
    return scales.size == 1 or nearby.axis(weight) == (0 if size else 1)


def _unsigned(weight: ir.Node, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The weight's integers counted from the least of their type, a scale and a zero point for each block, the bits."""
    stored, zeros = nearby.integers(weight), nearby.zero_point(weight)
    scales = query.constant(weight.inputs[1])
    assert stored is not None and zeros is not None and scales is not None, "the weight is packable"
    low, high = limits(query.constant(weight.inputs[0]).dtype.name)  # type: ignore[union-attr]
    shape = (-(-stored.shape[0] // size), stored.shape[1])
    spread = [np.broadcast_to(a if a.ndim == 2 else a.reshape(1, -1), shape) for a in (scales, zeros)]
    return stored - low, spread[0], spread[1] - low, (high - low).bit_length()


def _packed(levels: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned integers as bytes along the last axis, the first of them in the low bits."""
    together = 8 // bits
    short = -levels.shape[-1] % together
    padded = np.pad(levels, [(0, 0)] * (levels.ndim - 1) + [(0, short)])
    groups = padded.reshape(*padded.shape[:-1], -1, together)
    return np.asarray((groups << (bits * np.arange(together))).sum(axis=-1), np.uint8)
