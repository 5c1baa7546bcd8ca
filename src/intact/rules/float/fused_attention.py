"""Attention that ONNX Runtime's optimizer fuses, taken apart into products, masks and a softmax for each head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.model import query
from intact.records import dataclass
from intact.rules.float.fused_layers import FusedRule

_HEADS_BEFORE_ROWS = (0, 2, 1, 3)


class TakeAttentionApart(FusedRule):
    """Attention(x) = softmax(s · (x·Wq) · (x·Wk)ᵀ + mask) · (x·Wv), for each head, with masks of 0 and 1."""

    op = "Attention"

    def check(self, node: ir.Node) -> str | None:
        if not (query.is_constant(node.inputs[1]) and _is_constant_or_absent(query.input_(node, 2))):
            return "its weight or its bias is computed"
        if query.rank(node.inputs[0]) != 3:
            return "the shape of its input is not known"
        if query.int_(node, "do_rotary", 0) or query.input_(node, 6) is not None:
            return "it turns positions, or shares a buffer with its past"
        return _no_mask_known(node, node.inputs[:1], query.input_(node, 3), query.input_(node, 4))

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        count = query.int_(node, "num_heads", 1)
        parts = [_heads(op, part, count) for part in self._projected(op, node)]
        past = query.input_(node, 4)
        if past is not None:
            parts[1:] = [op.Concat(_half(op, past, at), part, axis=2) for at, part in enumerate(parts[1:])]
        rows, width = _rows(node.inputs[0]), self._sizes(node)
        scores = AttentionScores.of(node, rows, rows + (_past_length(past) or 0), width[0] // count)
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
        ranks = [query.rank(query.input_(node, at)) for at in range(3)]
        if ranks[0] != 3 or any(rank not in (3, 4) for rank in ranks) or _widths(node) is None:
            return "its queries, keys and values are not three tensors of known shape"
        if not _is_constant_or_absent(query.input_(node, 3)):
            return "its bias is computed"
        if any(query.input_(node, at) is not None for at in (8, 9)):
            return "it shares a buffer with its past"
        return _no_mask_known(node, node.inputs[:2], query.input_(node, 4), query.input_(node, 6))

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        count = query.int_(node, "num_heads", 1)
        given = [value for value in node.inputs[:3] if value is not None]
        widths = _widths(node)
        assert widths is not None, "the widths were checked"
        parts = [_heads(op, part, count) for part in self._biased(op, node, given)]
        for at, past in ((1, query.input_(node, 6)), (2, query.input_(node, 7))):
            parts[at] = parts[at] if past is None else op.Concat(past, parts[at], axis=2)
        length = _rows(given[1]) + (_past_length(query.input_(node, 6)) or 0)
        scores = AttentionScores.of(node, _rows(given[0]), length, widths[0] // count)
        mask = scores.mask(op, query.input_(node, 4), query.input_(node, 5))
        result = _attended(op, scores, parts, mask, widths[1])
        return [result, *parts[1:]][: len(node.outputs)]

    @staticmethod
    def _biased(op: Builder, node: ir.Node, given: list[ir.Value]) -> list[ir.Value]:
        """The inputs with the bias added; keys and values that are split into heads already have theirs."""
        bias = query.constant(query.input_(node, 3))
        if bias is None:
            return given
        width = (_widths(node) or (0,))[0]
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
        rank = query.rank(mask)
        axes = op.constant(np.array([1] if rank == 3 else [1, 2]), "axes")
        live = op.Unsqueeze(self._within(op, mask) if rank == 1 else _as_float(op, mask), axes)
        one = op.constant(np.array(1, np.float32), "one")
        return op.Mul(op.Sub(one, live), op.constant(np.array(self.hidden, np.float32), "hidden"))

    def _within(self, op: Builder, lengths: ir.Value) -> ir.Value:
        """1 for keys at places below the length of their row, 0 for others: 2 · (length − place) − 0.5, cut off.

        A grid may move a length by up to a quarter. NPUs compare no integers.
        """
        doubled = op.Mul(_as_float(op, lengths), op.constant(np.array(2, np.float32), "two"))
        places = 2 * np.arange(self.columns, dtype=np.float32) + np.float32(0.5)
        beyond = op.Sub(op.Unsqueeze(doubled, op.constant(np.array([1]), "axis")), op.constant(places[None], "places"))
        ends = (op.constant(np.array(end, np.float32), "end") for end in (0, 1))
        return op.Clip(beyond, *ends)


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


def _as_float(op: Builder, counted: ir.Value) -> ir.Value:
    """Integers as floats; a sum of integers as one of floats, because NPUs sum no integers."""
    node = counted.producer()
    if node is not None and not node.domain and node.op_type == "Cast" and _is_integer(node.inputs[0]):
        return _as_float(op, node.inputs[0])
    if node is not None and not node.domain and node.op_type == "ReduceSum" and _is_integer(node.inputs[0]):
        return op.ReduceSum(_as_float(op, node.inputs[0]), *node.inputs[1:], **node.attributes)
    return op.Cast(counted, to=int(ir.DataType.FLOAT))


def _is_integer(value: ir.Value | None) -> TypeGuard[ir.Value]:
    return value is not None and value.dtype in (ir.DataType.INT32, ir.DataType.INT64)


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


def _rows(value: ir.Value | None) -> int:
    """The number of queries or keys; 0 where it is not known, which only what goes by their places needs."""
    size = None if value is None or value.shape is None else value.shape[-2]
    return size if isinstance(size, int) else 0


def _widths(node: ir.Node) -> tuple[int, int] | None:
    """The widths of queries and of values, all heads together, or None where one is not known."""
    first, last = (None if value is None or value.shape is None else value.shape[-1] for value in node.inputs[:3:2])
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    return first, last * (query.int_(node, "num_heads", 1) if query.rank(node.inputs[2]) == 4 else 1)


def _no_mask_known(
    node: ir.Node, counted: Sequence[ir.Value | None], mask: ir.Value | None, past: ir.Value | None
) -> str | None:
    """Refuse a mask that is not known, or that goes by the places of rows whose number, in `counted`, is not."""
    if _past_length(past) is None:
        return "the length of its past is not known"
    by_place = query.int_(node, "unidirectional", 0) or query.rank(mask) == 1
    if by_place and not all(map(_rows, counted)):
        return "it hides keys by their places, of which the number is not known"
    if mask is None or query.rank(mask) in (2, 3):
        return None
    if query.rank(mask) != 1 or mask.dtype != ir.DataType.INT32:
        return "its mask is neither lengths nor of two or three dimensions, or of unknown shape"
    sizes = [value.shape[0] for value in (mask, counted[0]) if value is not None and value.shape is not None]
    if all(isinstance(size, int) for size in sizes) and len(set(sizes)) > 1:
        return "its mask holds other numbers than the length of each row"
    return None


def _is_constant_or_absent(value: ir.Value | None) -> bool:
    return value is None or query.is_constant(value)
