"""Attention that ONNX Runtime's optimizer fuses, taken apart into products, masks and a softmax for each head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.model import query
from intact.rules.float.fused_layers import FusedRule

_HEADS_BEFORE_ROWS = (0, 2, 1, 3)


class TakeAttentionApart(FusedRule):
    """Attention(x) = softmax(s · (x·Wq) · (x·Wk)ᵀ + mask) · (x·Wv), for each head, with masks of 0 and 1."""

    op = "Attention"

    def check(self, node: ir.Node) -> str | None:
        if not (query.is_constant(node.inputs[1]) and _is_constant_or_absent(query.input_(node, 2))):
            return "its weight or its bias is computed"
        if query.static_shape(node.inputs[0]) is None:
            return "the shape of its input is not known"
        if query.int_(node, "do_rotary", 0) or query.input_(node, 6) is not None:
            return "it turns positions, or shares a buffer with its past"
        return _no_mask_known(query.input_(node, 3), _past_length(query.input_(node, 4)))

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        count = query.int_(node, "num_heads", 1)
        parts = [_heads(op, part, count) for part in self._projected(op, node)]
        past = query.input_(node, 4)
        if past is not None:
            parts[1:] = [op.Concat(_half(op, past, at), part, axis=2) for at, part in enumerate(parts[1:])]
        shape, width = query.known_shape(node.inputs[0]), self._sizes(node)
        scores = AttentionScores.of(node, shape[1], shape[1] + (_past_length(past) or 0), width[0] // count)
        mask = scores.mask(op, query.input_(node, 3), query.input_(node, 5))
        result = _attended(op, scores, parts, mask, width[2])
        if len(node.outputs) == 1:
            return [result]
        first = op.constant(np.array([0]), "axis")
        return [result, op.Concat(*(op.Unsqueeze(part, first) for part in parts[1:]), axis=0)]

    @staticmethod
    def _sizes(node: ir.Node) -> tuple[int, ...]:
        """The widths of queries, keys and values."""
        total = query.known_shape(node.inputs[1])[1]
        return query.ints(node, "qkv_hidden_sizes", (total // 3,) * 3)

    def _projected(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        """Queries, keys and values, each by a weight of its own, as exporters write them."""
        ends = np.cumsum(self._sizes(node))[:-1]
        weights = np.split(query.known_constant(node.inputs[1]), ends, axis=1)
        products = [op.MatMul(node.inputs[0], op.constant(np.ascontiguousarray(part), "weight")) for part in weights]
        bias = query.constant(query.input_(node, 2))
        if bias is None:
            return products
        pairs = zip(products, np.split(bias, ends), strict=True)
        return [op.Add(product, op.constant(part, "bias")) for product, part in pairs]


class TakeMultiHeadAttentionApart(FusedRule):
    """MultiHeadAttention(q, k, v) = softmax(s · q·kᵀ + mask) · v, for each head, with masks of 0 and 1."""

    op = "MultiHeadAttention"

    def check(self, node: ir.Node) -> str | None:
        shapes = [query.static_shape(query.input_(node, at)) for at in range(3)]
        if any(shape is None or len(shape) not in (3, 4) for shape in shapes) or len(shapes[0] or ()) != 3:
            return "its queries, keys and values are not three tensors of known shape"
        if not _is_constant_or_absent(query.input_(node, 3)):
            return "its bias is computed"
        if any(query.input_(node, at) is not None for at in (8, 9)):
            return "it shares a buffer with its past"
        return _no_mask_known(query.input_(node, 4), _past_length(query.input_(node, 6)))

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        count = query.int_(node, "num_heads", 1)
        given = [value for value in node.inputs[:3] if value is not None]
        rows, width = query.known_shape(given[0])[1], query.known_shape(given[0])[2]
        parts = [_heads(op, part, count) for part in self._biased(op, node, given)]
        for at, past in ((1, query.input_(node, 6)), (2, query.input_(node, 7))):
            parts[at] = parts[at] if past is None else op.Concat(past, parts[at], axis=2)
        keys, last = query.known_shape(given[1]), query.known_shape(given[2])
        length = keys[-2] + (_past_length(query.input_(node, 6)) or 0)
        scores = AttentionScores.of(node, rows, length, width // count)
        mask = scores.mask(op, query.input_(node, 4), query.input_(node, 5))
        result = _attended(op, scores, parts, mask, last[2] if len(last) == 3 else last[3] * count)
        return [result, *parts[1:]][: len(node.outputs)]

    @staticmethod
    def _biased(op: Builder, node: ir.Node, given: list[ir.Value]) -> list[ir.Value]:
        """The inputs with the bias added; keys and values that are split into heads already have theirs."""
        bias = query.constant(query.input_(node, 3))
        if bias is None:
            return given
        width = query.known_shape(given[0])[2]
        pairs = zip(given, np.split(bias, [width, 2 * width]), strict=True)
        return [op.Add(value, op.constant(part, "bias")) if query.rank(value) == 3 else value for value, part in pairs]


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """The scores of `rows` queries and `columns` keys: their factor, and what hides keys."""

    rows: int
    columns: int
    factor: float
    hidden: float
    causal: bool

    @classmethod
    def of(cls, node: ir.Node, rows: int, columns: int, width: int) -> AttentionScores:
        """The scores of a node whose heads are `width` wide."""
        factor = query.float_(node, "scale", 0.0) or 1 / math.sqrt(width)
        hidden = query.float_(node, "mask_filter_value", -10000.0)
        return cls(rows, columns, factor, hidden, bool(query.int_(node, "unidirectional", 0)))

    def mask(self, op: Builder, mask: ir.Value | None, bias: ir.Value | None) -> list[ir.Value]:
        """The tensors to add to the scores: for keys that count for nobody, for keys that come later, and given."""
        found = [] if mask is None else [self._padding(op, mask)]
        if self.causal:
            later = np.triu(np.ones((self.rows, self.columns), bool), 1 + self.columns - self.rows)
            found.append(op.constant(np.where(later, np.finfo(np.float32).min, np.float32(0)), "causal"))
        return found if bias is None else [*found, bias]

    def _padding(self, op: Builder, mask: ir.Value) -> ir.Value:
        shape = query.known_shape(mask)
        if len(shape) == 1:
            lengths = op.Unsqueeze(mask, op.constant(np.array([1]), "axis"))
            places = op.constant(np.arange(self.columns, dtype=np.int32)[None], "places")
            mask, shape = op.Less(places, lengths), (shape[0], self.columns)
        axes = op.constant(np.array([1, 2] if len(shape) == 2 else [1]), "axes")
        live = op.Unsqueeze(op.Cast(mask, to=int(ir.DataType.FLOAT)), axes)
        one = op.constant(np.array(1, np.float32), "one")
        return op.Mul(op.Sub(one, live), op.constant(np.array(self.hidden, np.float32), "hidden"))


def _attended(
    op: Builder, scores: AttentionScores, parts: list[ir.Value], added: list[ir.Value], width: int
) -> ir.Value:
    """Softmax over the keys, times the values, with the heads side by side again."""
    first, keys, values = parts
    turned = op.Transpose(keys, perm=[0, 1, 3, 2])
    result = op.Mul(op.MatMul(first, turned), op.constant(np.array(scores.factor, np.float32), "scale"))
    for mask in added:
        result = op.Add(result, mask)
    heads = op.MatMul(op.Softmax(result, axis=-1), values)
    shape = op.constant(np.array([0, 0, width]), "shape")
    return op.Reshape(op.Transpose(heads, perm=_HEADS_BEFORE_ROWS), shape)


def _heads(op: Builder, value: ir.Value, count: int) -> ir.Value:
    """[batch, rows, heads · width] as [batch, heads, rows, width]; what has four axes is so already."""
    if query.rank(value) == 4:
        return value
    shape = op.constant(np.array([0, 0, count, -1]), "shape")
    return op.Transpose(op.Reshape(value, shape), perm=_HEADS_BEFORE_ROWS)


def _half(op: Builder, past: ir.Value, at: int) -> ir.Value:
    """The keys (0) or the values (1) of a past that holds both."""
    return op.Gather(past, op.constant(np.array(at), "half"), axis=0)


def _past_length(past: ir.Value | None) -> int | None:
    """The keys that are there already; None where that is not known."""
    shape = query.static_shape(past)
    return 0 if past is None else None if shape is None else shape[-2]


def _no_mask_known(mask: ir.Value | None, past: int | None) -> str | None:
    if past is None:
        return "the length of its past is not known"
    shape = query.static_shape(mask)
    if mask is None or (shape is not None and len(shape) in (2, 3)):
        return None
    if shape is None or len(shape) != 1 or mask.dtype != ir.DataType.INT32:
        return "its mask is neither lengths nor of two or three dimensions, or of unknown shape"
    return None


def _is_constant_or_absent(value: ir.Value | None) -> bool:
    return value is None or query.is_constant(value)
