"""Nodes that compute what another node has computed already."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from intact.matching.rewriter import EXACT
from intact.model import edit, query
from intact.results import Application
from intact.rules.float import constant_folding
from intact.rules.float.masks import BIAS, MARK

# What follows from its input alone is computed once, whatever becomes of the result.
_KEPT = constant_folding.KEPT - {"DynamicQuantizeLinear"}

_NUMBERS = (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)
_PLAIN = (*_NUMBERS, ir.AttributeType.STRING, ir.AttributeType.STRINGS)

# Scalars, shapes and axes compare by value; of larger constants only the very same one is equal.
_MOST_COMPARED = 16


def merge(model: ir.Model) -> tuple[Application, ...]:
    """Make every node that repeats an earlier one of its graph use that one's outputs; return which did.

    Equal operators on equal inputs give equal outputs, so that this is exact. What each graph returns stays.
    """
    names = edit.Names(model)
    merged: list[Application] = []
    for graph in query.all_graphs(model):
        first: dict[Hashable, ir.Node] = {}
        for node in list(graph):
            key = _key(node)
            known = node if key is None else first.setdefault(key, node)
            if known is not node and not any(value.is_graph_output() for value in node.outputs):
                _use_instead(node, known, names)
                merged.append(Application("merge_duplicates", node.name or "", EXACT.value))
    return tuple(merged)


def _key(node: ir.Node) -> Hashable | None:
    """A key that equals that of another node if both compute the same, or None for a node that is left alone."""
    if node.domain or node.op_type in _KEPT or any(query.bodies(node)):
        return None
    # Each mask keeps a constant of its own, so that its depth can follow the scores of its own layer.
    if node.metadata_props.get(MARK) == BIAS:
        return None
    if any(attribute.type not in _PLAIN for attribute in node.attributes.values()):
        return None
    attributes = tuple(sorted((name, _plain(item)) for name, item in node.attributes.items()))
    return node.op_type, attributes, tuple(map(_identity, node.inputs)), len(node.outputs)


def _plain(attribute: ir.Attr) -> tuple[str, ...]:
    return attribute.type.name, repr(attribute.value)


def _identity(value: ir.Value | None) -> Hashable:
    tensor = query.constant_tensor(value)
    if tensor is None or tensor.size > _MOST_COMPARED:
        return id(value)
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


def _use_instead(node: ir.Node, known: ir.Node, names: edit.Names) -> None:
    for old, new in zip(node.outputs, known.outputs, strict=True):
        edit.replace_value(old, new, names)
    edit.remove_dead([node])
