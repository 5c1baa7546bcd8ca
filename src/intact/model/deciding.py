"""Nodes whose results decide a branch, a count or a shape: rounding them changes which nodes run, and on how much.

A number that decides is a scalar or a vector. Behind larger tensors, and behind products with weights, stands the
network itself: its roundings are what a model in fewer bits consists of.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.model import query
from intact.model.multiplications import multiply_adds

# For each operator, the slots whose values decide: a branch, a number of rounds or of results, a shape or a position.
SLOTS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "If": (0,),
    "Loop": (0, 1),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
# They read the shape of a tensor, and none of its values.
_BLIND = {"Shape", "Size"}


def deciding(model: ir.Model) -> frozenset[ir.Node]:
    """The nodes of all graphs on whose results a branch, a count or a shape depends."""
    nodes = list(query.all_nodes(model))
    carried = dict(pair for node in nodes if _is(node, "Loop") for pair in _carried(node))
    pending = [value for node in nodes for value in _decided_by(node)]
    found: set[ir.Node] = set()
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        producer = value.producer()
        if producer is None:
            pending += carried.get(value, ())
        elif any(True for _ in query.bodies(producer)):
            pending += [output for body in query.bodies(producer) for output in body.outputs]
        elif _counts(producer):
            found.add(producer)
            pending += [read for read in producer.inputs if read is not None]
    return frozenset(found)


def _decided_by(node: ir.Node) -> Iterator[ir.Value]:
    """The values that decide something in a node; the body of a Loop says whether there is another round."""
    slots = SLOTS.get(node.op_type, ()) if not node.domain else ()
    yield from (value for slot in slots if (value := query.input_(node, slot)) is not None)
    if _is(node, "Loop"):
        yield from node.attributes["body"].as_graph().outputs[:1]


def _carried(loop: ir.Node) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
    """Each value that a round of a loop starts with, and where it comes from: before the loop, and the last round."""
    body = loop.attributes["body"].as_graph()
    for index, value in enumerate(body.inputs[2:]):
        first = query.input_(loop, index + 2)
        yield value, [*([first] if first is not None else []), body.outputs[index + 1]]


def _counts(node: ir.Node) -> bool:
    """True if a node computes scalars or vectors from nothing larger, without weights."""
    read = [value for value in node.inputs if value is not None and query.is_float(value)]
    values = [*(value for value in read if not query.is_constant(value)), *node.outputs]
    small = all(rank is not None and rank <= 1 for rank in map(query.rank, values))
    return small and node.op_type not in _BLIND and not multiply_adds(node)


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain
