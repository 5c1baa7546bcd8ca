"""Nodes that only move values take the type of their neighbours, so that as few Casts as possible are needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from intact.model import query
from intact.quantization.float16.form import Form

MOVES = frozenset(
    {
        "Concat",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)


def follow(forms: Mapping[ir.Node, Form], kept: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes to compute in half precision: all but those in `kept`, and those that follow one of these.

    Nodes that move values and stand together have one type: that which needs fewer Casts at their borders.
    """
    half = {node for node in forms if node not in kept and not _moves(node)}
    for group in _groups([node for node in forms if node not in kept and _moves(node)]):
        if _casts(group, forms, half, to_half=True) <= _casts(group, forms, half, to_half=False):
            half |= group
    return half


def _moves(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in MOVES


def _groups(nodes: list[ir.Node]) -> Iterator[set[ir.Node]]:
    """The nodes that hand values to each other, together."""
    waiting = dict.fromkeys(nodes)
    while waiting:
        pending = [waiting.popitem()[0]]
        group: set[ir.Node] = set()
        while pending:
            node = pending.pop()
            group.add(node)
            around = [other for other in _neighbours(node) if other in waiting]
            for other in around:
                waiting.pop(other, None)
            pending += around
        yield group


def _neighbours(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        producer = value.producer() if value is not None and value.dtype == ir.DataType.FLOAT else None
        if producer is not None:
            yield producer
    for value in node.outputs:
        yield from value.consumers()


def _casts(group: set[ir.Node], forms: Mapping[ir.Node, Form], half: Collection[ir.Node], *, to_half: bool) -> int:
    """Count the Casts that a group needs if it is half (or float32): one for each value that crosses its border."""
    crossing: set[tuple[ir.Value, bool]] = set()
    for node in group:
        for index in forms[node].inputs:
            value = node.inputs[index]
            assert value is not None, "only present inputs have a form"
            if value.producer() not in group and not query.is_constant(value):
                crossing |= {(value, to_half)} if is_half(value, forms, half) != to_half else set()
        for index in forms[node].outputs:
            value = node.outputs[index]
            outside = [use for use in value.uses() if use.node not in group]
            if any(reads_half(*use, forms, half) != to_half for use in outside) or (
                to_half and value.is_graph_output()
            ):
                crossing.add((value, not to_half))
    return len(crossing)


def is_half(value: ir.Value, forms: Mapping[ir.Node, Form], half: Collection[ir.Node]) -> bool:
    """True if a value is written in half precision."""
    producer = value.producer()
    return producer is not None and producer in half and (value.index() or 0) in forms[producer].outputs


def reads_half(node: ir.Node, index: int, forms: Mapping[ir.Node, Form], half: Collection[ir.Node]) -> bool:
    """True if a node reads an input in half precision; nodes of a body never do."""
    return node in half and index in forms[node].inputs
