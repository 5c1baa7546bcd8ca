"""Parts of a tensor: what a Gather of one index, a Slice or a Split takes of it."""

from __future__ import annotations

import onnx_ir as ir

from intact.model import query
from intact.records import dataclass

_TAKING = ("Gather", "Slice", "Split")


@dataclass(frozen=True, slots=True)
class AxisPart:
    """Indices from `start` to `stop` of an axis that has `length` of them."""

    axis: int
    start: int
    stop: int
    length: int

    def is_apart(self, reader: ir.Node) -> bool:
        """True if all that a node reads of the same tensor lies beside this part."""
        others = [part_of(output) for output in reader.outputs] if reader.op_type in _TAKING else [None]
        return all(
            part is not None and part.axis == self.axis and (part.stop <= self.start or self.stop <= part.start)
            for part in others
        )


def part_of(value: ir.Value) -> AxisPart | None:
    """The part of its first input that a node writes as `value`, if it is known."""
    node = value.producer()
    source = query.input_(node, 0) if node is not None else None
    if node is None or node.domain or source is None or source.shape is None:
        return None
    axis = _axis(node)
    if axis is None or not -len(source.shape) <= axis < len(source.shape):
        return None
    axis %= len(source.shape)
    length = source.shape[axis]
    ends = _ends(node, value, axis, length) if isinstance(length, int) else None
    return AxisPart(axis, *ends, length) if ends is not None and isinstance(length, int) else None


def _axis(node: ir.Node) -> int | None:
    if node.op_type == "Slice":
        axis = query.scalar(query.input_(node, 3))
        return None if axis is None else int(axis)
    return query.int_(node, "axis", 0)


def _ends(node: ir.Node, value: ir.Value, axis: int, length: int) -> tuple[int, int] | None:
    if node.op_type == "Gather":
        index = query.constant(node.inputs[1])
        return (int(index) % length, int(index) % length + 1) if index is not None and index.ndim == 0 else None
    if node.op_type == "Slice":
        start, stop, step = (query.scalar(query.input_(node, index)) for index in (1, 2, 4))
        if start is None or stop is None or (query.input_(node, 4) is not None and step != 1):
            return None
        return slice(int(start), int(stop)).indices(length)[:2]
    if node.op_type == "Split":
        sizes = [query.static_shape(output) for output in node.outputs]
        number = node.outputs.index(value)
        if any(shape is None for shape in sizes):
            return None
        before = sum(shape[axis] for shape in sizes[:number] if shape is not None)
        return before, before + sum(shape[axis] for shape in sizes[number : number + 1] if shape is not None)
    return None
