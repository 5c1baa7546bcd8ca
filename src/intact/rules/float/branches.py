"""An If whose condition is a constant: the branch that runs, in its place."""

from __future__ import annotations

from collections import deque

import onnx_ir as ir

from intact.matching.rewriter import EXACT
from intact.model import edit, query
from intact.results import Application


def inline(model: ir.Model) -> tuple[Application, ...]:
    """Put the nodes of the branch that runs in the place of every If that is decided; return which were.

    The same nodes run as before, so that this is exact. Values have names that no other graph of the model uses.
    """
    names: edit.Names | None = None
    inlined: list[Application] = []
    graphs = [model.graph]
    while graphs:
        nodes = deque(graphs.pop())
        while nodes:
            node = nodes.popleft()
            branch = _taken(node)
            if branch is None:
                graphs += query.bodies(node)
                continue
            names = names or edit.Names(model)
            inlined.append(Application("inline_branch", node.name or "", EXACT.value))
            nodes.extendleft(reversed(_splice(node, branch, names)))
    return tuple(inlined)


def _taken(node: ir.Node) -> ir.Graph | None:
    """The branch that always runs, or None where that is not known, or the node is no If."""
    if node.domain or node.op_type != "If":
        return None
    condition = query.scalar(node.inputs[0])
    return None if condition is None else node.attributes["then_branch" if condition else "else_branch"].as_graph()


def _splice(node: ir.Node, branch: ir.Graph, names: edit.Names) -> list[ir.Node]:
    """Move everything in `branch` to where `node` is, and take that out; return the nodes that were moved."""
    graph, nodes, results = node.graph, list(branch), list(branch.outputs)
    assert graph is not None, f"{node.name!r} is in a graph"
    branch.outputs.clear()
    branch.remove(nodes)
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        graph.initializers[value.name or ""] = value
    graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, results, strict=True):
        edit.replace_value(old, new, names)
    graph.remove(node, safe=True)
    return nodes
