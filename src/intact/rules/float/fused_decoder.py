"""Operators of decoders that ONNX Runtime fuses: norms without a mean, rotated positions, queries that share keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.model import query
from intact.rules.float.fused_layers import FusedRule

_HEADS_FIRST = (0, 2, 1, 3)


class TakeSimplifiedNormApart(FusedRule):
    """SimplifiedLayerNormalization(x, w) = w · x / √(mean(x²) + ε)."""

    op, domain = "SimplifiedLayerNormalization", ""

    def check(self, node: ir.Node) -> str | None:
        if query.int_(node, "axis", -1) not in (-1, (query.rank(node.inputs[0]) or 0) - 1):
            return "it is not along the last axis"
        return _deviation_used(node, node.outputs[1:])

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        result = _simplified(op, node, node.inputs[0], node.inputs[1])
        return [result] * len(node.outputs)


class TakeSkipSimplifiedNormApart(FusedRule):
    """SkipSimplifiedLayerNormalization(x, y, w, b) = w · s / √(mean(s²) + ε) with s = x + y + b."""

    op = "SkipSimplifiedLayerNormalization"

    def check(self, node: ir.Node) -> str | None:
        return _deviation_used(node, node.outputs[1:3])

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        bias = query.input_(node, 3)
        first = node.inputs[0] if bias is None else op.Add(node.inputs[0], bias)
        total = op.Add(first, node.inputs[1])
        result = _simplified(op, node, total, node.inputs[2])
        return [result, result, result, total][: len(node.outputs)]


class TakeRotationApart(FusedRule):
    """RotaryEmbedding(x, p) = (a·cos p − b·sin p, b·cos p + a·sin p) for the halves a and b of each head."""

    op = "RotaryEmbedding"

    def check(self, node: ir.Node) -> str | None:
        shape, places = (query.static_shape(node.inputs[at]) for at in (0, 1))
        if shape is None or len(shape) not in (3, 4) or places is None:
            return "the shapes of what it reads are not known"
        if any(query.int_(node, name, 0) for name in ("interleaved", "is_packed_batching", "rotary_embedding_dim")):
            return "it rotates neighbours, a part of each head, or packed batches"
        return None if len(places) == 2 or query.is_constant(node.inputs[1]) else "its first position is computed"

    def rewrite(self, op: Builder, node: ir.Node) -> ir.Value:
        given, places = node.inputs[:2]
        assert given is not None and places is not None, "both were checked"
        shape = query.known_shape(given)
        if len(query.known_shape(places)) == 1:
            rows = shape[1 if len(shape) == 3 else 2]
            places = op.constant(np.arange(rows)[None] + query.known_constant(places), "places")
        # Heads come before rows in four axes, and behind them in three.
        axis = op.constant(np.array([1 if len(shape) == 4 else 2]), "axis")
        turns = [op.Unsqueeze(op.Gather(table, places), axis) for table in node.inputs[2:4]]
        if len(shape) == 4:
            return rotated(op, given, turns, shape[3])
        width = 2 * query.known_shape(node.inputs[2])[1]
        apart = op.Reshape(given, op.constant(np.array([0, 0, -1, width]), "shape"))
        return op.Reshape(rotated(op, apart, turns, width), op.constant(np.array([0, 0, shape[2]]), "shape"))


class TakeGroupQueryApart(FusedRule):
    """GroupQueryAttention(q, k, v) = softmax(s · q·kᵀ, of keys not after the query) · v; heads share keys."""

    op = "GroupQueryAttention"

    def check(self, node: ir.Node) -> str | None:
        shape = query.static_shape(node.inputs[0])
        if shape is None or query.static_shape(_given(node, 3)) is None or query.static_shape(_given(node, 4)) is None:
            return "the shapes of what it reads are not known"
        others = any(query.input_(node, at) is not None for at in range(9, len(node.inputs)))
        if others or query.float_(node, "softcap", 0.0) or any(query.int_(node, name, 0) for name in _VARIANTS):
            return "it has a bias, a window, a cap, or rotates neighbours"
        if query.int_(node, "local_window_size", -1) != -1:
            return "it has a bias, a window, a cap, or rotates neighbours"
        return _unknown_lengths(node, shape[1])

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        shape, count, shared = query.known_shape(node.inputs[0]), *_head_counts(node)
        packed = query.input_(node, 1) is None
        width = shape[2] // (count + 2 * shared if packed else count)
        parts = self._heads(op, node, (count, shared, shared), width)
        past = _past_rows(node)
        parts[:2] = self._rotated(op, node, parts[:2], range(past, past + shape[1]), width)
        if past:
            parts[1:] = [op.Concat(node.inputs[at], part, axis=2) for at, part in ((3, parts[1]), (4, parts[2]))]
        return [self._attended(op, node, parts, (shape[1], past, width)), *parts[1:]][: len(node.outputs)]

    @staticmethod
    def _heads(op: Builder, node: ir.Node, counts: tuple[int, ...], width: int) -> list[ir.Value]:
        """Queries, keys and values as [batch, heads, rows, width]."""
        given = list(node.inputs[:3])
        if given[1] is None:
            ends = np.cumsum([0, *counts]) * width
            bounds = [[op.constant(np.array([end]), "end") for end in pair] for pair in itertools.pairwise(ends)]
            axis = op.constant(np.array([2]), "axis")
            given = [op.Slice(node.inputs[0], *pair, axis) for pair in bounds]
        apart = (
            op.Reshape(value, op.constant(np.array([0, 0, count, width]), "shape"))
            for value, count in zip(given, counts, strict=True)
        )
        return [op.Transpose(value, perm=_HEADS_FIRST) for value in apart]

    @staticmethod
    def _rotated(op: Builder, node: ir.Node, parts: list[ir.Value], places: range, width: int) -> list[ir.Value]:
        """Queries and keys turned by their places, where the node does that."""
        if not query.int_(node, "do_rotary", 0):
            return parts
        rows = op.constant(np.array(places), "places")
        turns = [op.Gather(table, rows) for table in node.inputs[7:9]]
        return [rotated(op, part, turns, width) for part in parts]

    @staticmethod
    def _attended(op: Builder, node: ir.Node, parts: list[ir.Value], sizes: tuple[int, int, int]) -> ir.Value:
        """The heads that share keys as more rows of one head, so that nothing is copied."""
        (rows, past, width), (count, shared) = sizes, _head_counts(node)
        group = count // shared
        first, keys, values = parts
        wide = op.Reshape(first, op.constant(np.array([0, shared, group * rows, width]), "shape"))
        factor = query.float_(node, "scale", 0.0) or 1 / math.sqrt(width)
        scores = op.MatMul(wide, op.Transpose(keys, perm=[0, 1, 3, 2]))
        later = np.tile(np.triu(np.ones((rows, past + rows), bool), 1 + past), (group, 1))
        hidden = op.constant(np.where(later, np.finfo(np.float32).min, np.float32(0)), "causal")
        scaled = op.Add(op.Mul(scores, op.constant(np.array(factor, np.float32), "scale")), hidden)
        result = op.MatMul(op.Softmax(scaled, axis=-1), values)
        apart = op.Reshape(result, op.constant(np.array([0, count, rows, width]), "shape"))
        whole = op.constant(np.array([0, 0, count * width]), "shape")
        return op.Reshape(op.Transpose(apart, perm=_HEADS_FIRST), whole)


_VARIANTS = ("rotary_interleaved", "smooth_softmax", "qk_output", "k_quant_type", "v_quant_type", "kv_cache_bit_width")


def rotated(op: Builder, value: ir.Value, turns: list[ir.Value], width: int) -> ir.Value:
    """A value whose last axis has this width with its halves turned by cosines and sines."""
    half, last = width // 2, op.constant(np.array([-1]), "axis")
    ends = [op.constant(np.array([end]), "end") for end in (0, half, width)]
    a, b = op.Slice(value, ends[0], ends[1], last), op.Slice(value, ends[1], ends[2], last)
    cos, sin = turns
    return op.Concat(op.Sub(op.Mul(a, cos), op.Mul(b, sin)), op.Add(op.Mul(b, cos), op.Mul(a, sin)), axis=-1)


def _simplified(op: Builder, node: ir.Node, value: ir.Value | None, weight: ir.Value | None) -> ir.Value:
    two = op.constant(np.array(2, np.float32), "two")
    mean = op.ReduceMean(op.Pow(value, two), op.constant(np.array([-1]), "axes"))
    epsilon = op.constant(np.array(query.float_(node, "epsilon", 1e-5), np.float32), "epsilon")
    return op.Mul(op.Div(value, op.Sqrt(op.Add(mean, epsilon))), weight)


def _deviation_used(node: ir.Node, outputs: Sequence[ir.Value]) -> str | None:
    if any(not query.is_unused(output) for output in outputs):
        return "its mean or deviation is used"
    return None if node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT else "it is not in float32"


def _head_counts(node: ir.Node) -> tuple[int, int]:
    """The heads of queries, and those of keys and values."""
    return query.int_(node, "num_heads", 1), query.int_(node, "kv_num_heads", 1)


def _given(node: ir.Node, at: int) -> ir.Value | None:
    """An input, or the first where it is left out."""
    return node.inputs[0] if query.input_(node, at) is None else node.inputs[at]


def _past_rows(node: ir.Node) -> int:
    past = query.input_(node, 3)
    return 0 if past is None else query.known_shape(past)[2]


def _unknown_lengths(node: ir.Node, rows: int) -> str | None:
    """Refuse rows that come behind a past of which only a part may count; without a past nothing depends on lengths."""
    past, lengths = _past_rows(node), query.constant(query.input_(node, 5))
    if not past or (lengths is not None and np.all(lengths == past + rows - 1)):
        return None
    return "the lengths of its past are not constants, or differ from the past that it has"
