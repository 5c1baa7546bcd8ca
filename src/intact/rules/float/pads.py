"""Pad nodes moved into the padding of the Conv or pool that follows."""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, Rule
from intact.model import query

_PADDING = ("auto_pad", "pads")


class PadConv(Rule):
    """Conv(Pad(x, p, 0), pads=q) = Conv(x, pads=p + q), up to float rounding."""

    exactness = BOUNDED

    def pattern(
        self, op: Patterns, x: Var, pads: Var, rest: Var, value: Var | None = None, axes: Var | None = None
    ) -> Roots:
        return op.Conv(_pad(op, x, pads, value, axes), op.each(rest), _name="node")

    def check(self, x: ir.Value, pads: ir.Value, value: ir.Value | None, pad: ir.Node, node: ir.Node) -> str | None:
        return _pad_doubt(x, pads, pad, node) or _value_doubt(value, 0.0)

    def rewrite(self, op: Builder, x: ir.Value, rest: tuple[ir.Value, ...], pad: ir.Node, node: ir.Node) -> ir.Value:
        return op.like(node, x, *rest, _dropped=_PADDING, pads=_padding(x, pad, node))


class PadAveragePool(Rule):
    """AveragePool(Pad(x, p, 0)) = AveragePool(x, pads=p, count_include_pad=1), up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, pads: Var, value: Var | None = None, axes: Var | None = None) -> Roots:
        return op.AveragePool(_pad(op, x, pads, value, axes), _name="node")

    def check(self, x: ir.Value, pads: ir.Value, value: ir.Value | None, pad: ir.Node, node: ir.Node) -> str | None:
        doubt = _pad_doubt(x, pads, pad, node) or _value_doubt(value, 0.0) or _window_doubt(x, pad, node)
        if doubt is None and any(query.ints(node, "pads")) and not query.int_(node, "count_include_pad", 0):
            return "the pool has padding of its own that it does not count"
        return doubt

    def rewrite(self, op: Builder, x: ir.Value, pad: ir.Node, node: ir.Node) -> ir.Value:
        return op.like(node, x, _dropped=_PADDING, pads=_padding(x, pad, node), count_include_pad=1)


class PadMaxPool(Rule):
    """MaxPool(Pad(x, p, −∞)) = MaxPool(x, pads=p), and the same for padding with 0 where x is never negative."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, pads: Var, value: Var | None = None, axes: Var | None = None) -> Roots:
        return op.MaxPool(_pad(op, x, pads, value, axes), _name="node")

    def check(self, x: ir.Value, pads: ir.Value, value: ir.Value | None, pad: ir.Node, node: ir.Node) -> str | None:
        doubt = _pad_doubt(x, pads, pad, node) or _window_doubt(x, pad, node)
        if doubt is not None or (_is_never_negative(x) and _value_doubt(value, 0.0) is None):
            return doubt
        return _value_doubt(value, float("-inf"))

    def rewrite(self, op: Builder, x: ir.Value, pad: ir.Node, node: ir.Node) -> ir.Value:
        return op.like(node, x, _dropped=_PADDING, pads=_padding(x, pad, node))


def _pad(op: Patterns, x: Var, pads: Var, value: Var | None, axes: Var | None) -> Output:
    constants = [op.constant(item) for item in (pads, value, axes)]
    return op.Pad(x, *constants, _name="pad")


def _is_never_negative(x: ir.Value) -> bool:
    producer = x.producer()
    if producer is None:
        return False
    low = query.scalar(query.input_(producer, 1)) if producer.op_type == "Clip" else None
    return producer.op_type == "Relu" or (low is not None and low >= 0)


def _value_doubt(value: ir.Value | None, wanted: float) -> str | None:
    found = 0.0 if value is None else query.scalar(value)
    return None if found == wanted else f"it pads with {found}, the operator with {wanted:g}"


def _pad_doubt(x: ir.Value, pads: ir.Value, pad: ir.Node, node: ir.Node) -> str | None:
    mode = query.string(pad, "mode", "constant")
    if mode != "constant":
        return f"the mode of Pad is {mode}"
    if query.string(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return f"auto_pad is {query.string(node, 'auto_pad', 'NOTSET')}"
    if query.rank(x) is None:
        return f"the rank of {x.name!r} is unknown"
    begins, ends = _amounts(x, pad)
    if any((*begins[:2], *ends[:2])):
        return "it pads the batch or the channels"
    return "it crops" if min(*begins, *ends) < 0 else None


def _window_doubt(x: ir.Value, pad: ir.Node, node: ir.Node) -> str | None:
    """Refuse padding that a pool cannot take: windows that hold nothing else, or a rounding that depends on it."""
    if query.int_(node, "ceil_mode", 0) != 0:
        return "ceil_mode is 1"
    if any(step != 1 for step in query.ints(node, "dilations")):
        return "the window has gaps"
    kernel = query.ints(node, "kernel_shape")
    widths = _padding(x, pad, node)
    if any(width >= size for width, size in zip(widths, (*kernel, *kernel), strict=True)):
        return f"padding of {widths} is as wide as the window {list(kernel)}"
    return None


def _amounts(x: ir.Value, pad: ir.Node) -> tuple[list[int], list[int]]:
    """The elements that are added before and after, for every axis of `x`."""
    rank = query.rank(x)
    amounts, axes = query.constant(pad.inputs[1]), query.constant(query.input_(pad, 3))
    assert rank is not None, "checked"
    assert amounts is not None, "the pattern takes constants only"
    where = range(rank) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
    before, after = [0] * rank, [0] * rank
    for axis, first, last in zip(where, amounts[: len(where)], amounts[len(where) :], strict=True):
        before[axis], after[axis] = int(first), int(last)
    return before, after


def _padding(x: ir.Value, pad: ir.Node, node: ir.Node) -> list[int]:
    """The padding of both, as the node takes it."""
    before, after = _amounts(x, pad)
    added = (*before[2:], *after[2:])
    own = query.ints(node, "pads", (0,) * len(added))
    return [left + right for left, right in zip(own, added, strict=True)]
