"""The nodes that use the values of an input, as they are or passed on by others."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.model import query
from intact.records import dataclass

# Ops whose output holds the values of these slots; None stands for every slot.
_PASSES_ON: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Cast", "Clip", "Expand", "Flatten", "Identity", "Pad", "Reshape"), (0,)),
    **dict.fromkeys(("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"), (0,)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("Concat", "Max", "Min"), None),
    "Where": (1, 2),
}


@dataclass(frozen=True, slots=True)
class Meeting:
    """A node that uses an input's values in one of its slots, after `shift` was added to them on the way."""

    node: ir.Node
    slot: int
    shift: int = 0


def meetings_of(value: ir.Value) -> Iterator[Meeting]:
    """Every use of the values of `value`, those that pass them on included."""
    waiting, seen = [(value, 0)], {value}
    while waiting:
        current, shift = waiting.pop()
        for node, slot in current.uses():
            yield Meeting(node, slot, shift)
            moved = _shift_after(node, slot, current)
            if moved is None:
                continue
            fresh = [output for output in node.outputs if output not in seen]
            seen.update(fresh)
            waiting += [(output, shift + moved) for output in fresh]


def _shift_after(node: ir.Node, slot: int, value: ir.Value) -> int | None:
    """The number that a node adds to the values that it passes on, or None where it makes new ones of them."""
    if node.op_type in _PASSES_ON:
        slots = _PASSES_ON[node.op_type]
        return 0 if (slots is None or slot in slots) and not casts_to_bool(node) else None
    if node.op_type in {"Add", "Sub"} and value.dtype is not None and value.dtype.is_integer():
        other = query.constant(node.inputs[1 - slot])
        if other is None or other.size == 0 or (node.op_type == "Sub" and slot == 1):
            return None
        return int(other.max()) if node.op_type == "Add" else -int(other.min())
    return None


def casts_to_bool(node: ir.Node) -> bool:
    """True for a Cast that keeps of each number only whether it is zero."""
    return node.op_type == "Cast" and query.int_(node, "to", 0) == ir.DataType.BOOL
