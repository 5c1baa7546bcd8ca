"""The role of each input of a graph, read from the graph's structure alone.

An input is followed through ops that pass values on, to the nodes that use them. Integers that index a table are
ids; integers and bools that index nothing are masks, unless the type is so narrow (8 or 16 bits) that they are
samples of a signal; floats are data, unless they go through `(1 - x) * c` or a test for equality, as masks do.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.data.demands import Fixed, Interval, demand
from intact.data.meetings import Meeting, casts_to_bool, meetings_of
from intact.model import query
from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class Real:
    """Floating-point data."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Integer data over the whole range of its type: pixels or audio."""


@dataclass(frozen=True, slots=True)
class Mask:
    """0 or 1, with the live keys first."""


@dataclass(frozen=True, slots=True)
class TableIndex:
    """Integers from `low` up to, and without, `high`; `known` is False where no table's size was found."""

    low: int
    high: int
    known: bool = True


Role = Real | Signal | Mask | TableIndex | Fixed | Interval


MASKED_BY_AT_LEAST = 1000.0

_NARROW = {ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16}
_LOGIC = {"Not", "And", "Or", "Xor", "Equal"}
_COMPARISONS = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}

# Ops whose output holds every value of their first slot, and nothing else.
_KEEPS_ALL = {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
# Ops that refuse what is outside of the dimension that they index.
_LOOKS_UP = {"Gather", "GatherElements", "EmbedLayerNormalization"}


def roles(model: ir.Model) -> dict[str, Role]:
    """The role of every input that a caller has to feed, as far as values have to be made up for it."""
    return {value.name or "": demand(value) or role(value) for value in fed_inputs(model)}


def fed_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller has to feed."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def role(value: ir.Value) -> Role:
    """The role of one input."""
    meetings = list(meetings_of(value))
    dtype = value.dtype
    assert dtype is not None, "inputs have a type"
    if dtype == ir.DataType.BOOL:
        return Mask()
    if not dtype.is_integer():
        return Mask() if any(_masks_floats(meeting) for meeting in meetings) else Real()
    spans = [span for meeting in meetings if (span := _span(meeting)) is not None]
    if spans:
        low = max(span.low for span in spans)
        return TableIndex(low, max(low + 1, min(span.high for span in spans)), all(span.known for span in spans))
    if dtype in _NARROW and not any(_masks_floats(one) or one.node.op_type in _COMPARISONS for one in meetings):
        return Signal()
    return Mask()


def entries(value: ir.Value) -> int | None:
    """The entries of the smallest table that every value of an input looks up as it is, or None."""
    sizes: list[int] = []
    waiting = [value]
    while waiting:
        for node, slot in waiting.pop().uses():
            # A branch of If may not run.
            if node.graph is not value.graph:
                continue
            if node.op_type in _KEEPS_ALL and slot == 0:
                waiting += node.outputs
            elif node.op_type in _LOOKS_UP:
                sizes += [size for size in _indexed_sizes(node, slot) or () if size is not None]
    return min(sizes, default=None)


def _span(meeting: Meeting) -> TableIndex | None:
    """The ids that a table can answer, as values of the input, or None where the node looks nothing up."""
    sizes = _indexed_sizes(meeting.node, meeting.slot)
    if sizes is None:
        return None
    low = max(0, -meeting.shift)
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return TableIndex(low, low + 1, known=False)
    return TableIndex(low, min(known) - meeting.shift)


def _indexed_sizes(node: ir.Node, slot: int) -> list[int | None] | None:
    """The sizes of the dimensions that the node indexes with this slot, or None where it indexes none."""
    match node.op_type, slot:
        case (("Gather" | "GatherElements" | "ScatterElements"), 1):
            return [_size(node.inputs[0], query.int_(node, "axis", 0))]
        case (("GatherND" | "ScatterND"), 1):
            depth, first = _size(node.inputs[1], -1), query.int_(node, "batch_dims", 0)
            return [None] if depth is None else [_size(node.inputs[0], first + axis) for axis in range(depth)]
        case "OneHot", 0:
            classes = query.scalar(node.inputs[1])
            return [None if classes is None else int(classes)]
        case "EmbedLayerNormalization", (0 | 1):
            return [_size(node.inputs[2 if slot == 0 else 4], 0)]
        case "RoiAlign", 2:
            return [_size(node.inputs[0], 0)]
        case "MaxUnpool", 1:
            return [_elements(node.outputs[0])]
    return None


def _elements(value: ir.Value) -> int | None:
    shape = query.static_shape(value)
    return None if shape is None else math.prod(shape)


def _size(value: ir.Value | None, axis: int) -> int | None:
    """The size of one dimension, or None where the graph does not say."""
    if value is not None and value.shape is None:
        producer = value.producer()
        keeps_shape = producer is not None and producer.op_type in {"Cast", "Identity", "DequantizeLinear"}
        return _size(producer.inputs[0], axis) if producer is not None and keeps_shape else None
    if value is None or value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _masks_floats(meeting: Meeting) -> bool:
    node, slot = meeting.node, meeting.slot
    if node.op_type in _LOGIC or casts_to_bool(node) or (node.op_type == "Where" and slot == 0):
        return True
    return node.op_type == "Sub" and query.scalar(node.inputs[1 - slot]) == 1 and _hides_zeros(node, slot)


def _hides_zeros(node: ir.Node, slot: int) -> bool:
    """True if the difference from one is used as a mask: as a condition, or scaled to far below zero where x is 0."""
    sign = 1.0 if slot == 1 else -1.0
    for user, place in node.outputs[0].uses():
        if casts_to_bool(user) or user.op_type in _LOGIC:
            return True
        factor = query.scalar(user.inputs[1 - place]) if user.op_type == "Mul" else None
        if factor is not None and sign * factor <= -MASKED_BY_AT_LEAST:
            return True
    return False
