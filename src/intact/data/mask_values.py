"""The value of a mask that hides what it stands for, read from the structure of the graph.

A mask is followed, with its sense, to the node that makes scores low: `Where(mask, scores, -1e9)` and
`(1 - mask) * -1e9` hide where the mask is 0, `Where(mask, -1e9, scores)` and `mask * -1e9` where it is 1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import onnx_ir as ir

from intact.model import query

HIDES_BELOW = -10.0
"""A score of this or less, where others are near 0, is hidden: its share in a softmax is below 1/20000."""

_PASSES_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Tile", "Flatten"}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}
# Slots of fused attention that take a mask with 0 for what is hidden.
_FUSED_SLOTS = {"Attention": 3, "MultiHeadAttention": 4}


def hiding_value(value: ir.Value) -> int | None:
    """0 or 1, the value of this input that hides; None where the graph does not say, or says both."""
    found: set[int] = set()
    waiting, seen = [(value, True)], {(value, True)}
    while waiting:
        current, upright = waiting.pop()
        for node, slot in current.uses():
            hidden = _hidden(node, slot)
            if hidden is not None:
                found.add(hidden if upright else 1 - hidden)
                continue
            turned = _turned(node, slot)
            following = [(output, upright != turned) for output in node.outputs] if turned is not None else []
            waiting += [one for one in following if one not in seen]
            seen.update(following)
    return found.pop() if len(found) == 1 else None


def _hidden(node: ir.Node, slot: int) -> int | None:
    """The value in this slot for which the node makes scores low, or None for a node that makes none low."""
    match node.op_type, slot:
        case "Where", 0:
            lows = [branch for branch in (1, 2) if _is_low(node.inputs[branch])]
            return 2 - lows[0] if len(lows) == 1 else None
        case "Mul", _ if _is_low(node.inputs[1 - slot]):
            return 1
        case "Sub", 0 if query.scalar(node.inputs[1]) == 1:
            # x - 1 is -1 where x is 0: a large factor makes that low.
            return 0 if any(_scales_up(user, place) for user, place in node.outputs[0].uses()) else None
    return 0 if node.domain == "com.microsoft" and _FUSED_SLOTS.get(node.op_type) == slot else None


def _scales_up(node: ir.Node, slot: int) -> bool:
    factor = query.scalar(node.inputs[1 - slot]) if node.op_type == "Mul" else None
    return factor is not None and factor >= -HIDES_BELOW


def _is_low(value: ir.Value | None) -> bool:
    """True if all elements are constant, and so low that they hide."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type in _PASSES_ON:
        return _is_low(producer.inputs[0])
    if producer is not None and producer.op_type == "ConstantOfShape":
        filled = producer.attributes.get("value")
        return filled is not None and bool((filled.as_tensor().numpy() <= HIDES_BELOW).all())
    array = query.constant(value)
    return array is not None and array.size > 0 and array.dtype.kind in "fi" and bool((array <= HIDES_BELOW).all())


def _turned(node: ir.Node, slot: int) -> bool | None:
    """False if the node keeps the sense of a mask, True if it turns ones into zeros, None if it makes no mask of it."""
    if node.op_type in _PASSES_ON or node.op_type in {"Slice", "Gather"}:
        return False if slot == 0 else None
    if node.op_type in {"And", "Or", "Concat"} or (node.op_type == "Mul" and not query.is_float(node.outputs[0])):
        return False
    if node.op_type == "Not":
        return True
    if node.op_type == "Sub":
        return True if slot == 1 and query.scalar(node.inputs[0]) == 1 else None
    return _turned_by_comparison(node, slot)


def _turned_by_comparison(node: ir.Node, slot: int) -> bool | None:
    """The sense of `x == c`, `x > c` and the like, from what they give for 0 and for 1."""
    compare = _COMPARISONS.get(node.op_type)
    limit = query.scalar(node.inputs[1 - slot]) if compare is not None else None
    if compare is None or limit is None:
        return None
    of_zero, of_one = (bool(compare(x, limit) if slot == 0 else compare(limit, x)) for x in (0, 1))
    return None if of_zero == of_one else of_zero
