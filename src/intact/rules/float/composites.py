"""Operators that a device does not have, in those that ONNX defines them by.

Some of them ONNX Runtime's CPU has not either, losses for one: it takes them apart itself, but not in a model that a
compiler gets.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.matching.rewriter import BOUNDED
from intact.model import edit, query, randomness
from intact.model.op_definitions import definition
from intact.results import Application
from intact.rules.float import constant_folding


def take_apart(model: ir.Model, ops: Callable[[str, str], bool]) -> tuple[Application, ...]:
    """Write every operator that the target lacks in those of its definition; return which were.

    The definition says what an operator computes, up to the rounding of floats.
    """
    names: edit.Names | None = None
    opset = model.opset_imports[""]
    done: list[Application] = []
    for node in [node for node in model.graph if _is_lacking(node, ops)]:
        body = None if randomness.draws(node) else definition(node, opset)
        if body is None:
            continue
        names = names or edit.Names(model)
        _replace(node, body, names)
        done.append(Application("take_apart", node.name or "", BOUNDED.value))
    return tuple(done)


def _is_lacking(node: ir.Node, ops: Callable[[str, str], bool]) -> bool:
    """True for an operator that the target has not; integers of other tools are for the rules of quantized models."""
    return not node.domain and node.op_type not in constant_folding.KEPT and not ops("", node.op_type)


def _replace(node: ir.Node, body: ir.Graph, names: edit.Names) -> None:
    """Put the nodes of a definition in the place of `node`."""
    graph, given = node.graph, [value for value in node.inputs if value is not None]
    assert isinstance(graph, ir.Graph), f"{node.name!r} is in a graph"
    results = edit.splice(body, node, given, names, lambda name: f"{node.name}/{name}")
    for old, new in zip(node.outputs, results, strict=True):
        if not query.is_unused(old):
            edit.replace_value(old, new, names)
    graph.remove(node, safe=True)
