"""A Loop of known, small length: its iterations one after the other, for a device that has no control flow."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.matching.rewriter import EXACT
from intact.model import edit, query
from intact.results import Application

# Each iteration is a copy of the body; more would be a larger program than anybody means.
MOST = 16


def unroll(model: ir.Model) -> tuple[Application, ...]:
    """Write out every Loop that runs a small number of times, whatever its inputs are; return which were.

    The same nodes run on the same values, so that this is exact.
    """
    unrolled: list[Application] = []
    for node in list(query.all_nodes(model)):
        count = _count(node)
        if count is not None and node.graph is not None:
            _write_out(node, count, edit.Names(model))
            unrolled.append(Application("unroll_loop", node.name or "", EXACT.value))
    return tuple(unrolled)


def _count(node: ir.Node) -> int | None:
    """The number of iterations, or None where it is large, not known, or the node is no Loop."""
    if node.domain or node.op_type != "Loop":
        return None
    count, condition = query.scalar(query.input_(node, 0)), query.input_(node, 1)
    if count is None or not 1 <= count <= MOST:
        return None
    if condition is not None and not query.scalar(condition):
        return None
    body = node.attributes["body"].as_graph()
    # A body within is written out before: copies of it would share names.
    plain = not any(True for inner in body for _ in query.bodies(inner))
    return int(count) if plain and _goes_on(body) else None


def _goes_on(body: ir.Graph) -> bool:
    """True if no iteration ends the loop: the condition that it returns is the one that it got, or a true constant."""
    returned = body.outputs[0]
    producer = returned.producer()
    if producer is not None and producer.op_type == "Identity" and not producer.domain:
        source = producer.inputs[0]
        return source is body.inputs[1] or bool(query.scalar(source))
    return returned is body.inputs[1] or bool(query.scalar(returned))


def _write_out(node: ir.Node, count: int, names: edit.Names) -> None:
    graph, body = node.graph, node.attributes["body"].as_graph()
    assert isinstance(graph, ir.Graph), f"{node.name!r} is in a graph"
    carried = [value for value in node.inputs[2:] if value is not None]
    stacks: list[list[ir.Value]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    go = edit.add_initializer(graph, np.array(True), names.take(f"{node.name}/go"))
    for number in range(count):
        index = edit.add_initializer(graph, np.array(number), names.take(f"{node.name}/index"))
        copy = body.clone(allow_outer_scope_values=True)
        results = edit.splice(copy, node, [index, go, *carried], names, f"{{}}/{number}".format)
        carried = results[1 : 1 + len(carried)]
        for stack, value in zip(stacks, results[1 + len(carried) :], strict=True):
            stack.append(value)
    stacked = [_stack(node, stack, names) for stack in stacks]
    for old, new in zip(node.outputs, [*carried, *stacked], strict=True):
        edit.replace_value(old, new, names)
    graph.remove(node, safe=True)


def _stack(node: ir.Node, values: list[ir.Value], names: edit.Names) -> ir.Value:
    """One value of every iteration, along a new first axis."""
    graph = node.graph
    assert isinstance(graph, ir.Graph), f"{node.name!r} is in a graph"
    axes = edit.add_initializer(graph, np.array([0]), names.take(f"{node.name}/axes"))
    parts = [ir.node("Unsqueeze", [value, axes]) for value in values]
    joined = ir.node("Concat", [part.outputs[0] for part in parts], {"axis": 0})
    for added in (*parts, joined):
        added.name = names.take(f"{node.name}/{added.op_type}")
        added.outputs[0].name = names.take(f"{added.name}_output")
    graph.insert_before(node, [*parts, joined])
    return joined.outputs[0]
