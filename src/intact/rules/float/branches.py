"""An If whose condition is a constant: the branch that runs, in its place; for a device without control flow, both."""

from __future__ import annotations

from collections import deque

import onnx_ir as ir

from intact.matching.rewriter import EXACT
from intact.model import edit, query, randomness
from intact.results import Application

SELECT = "select_branch"
BRANCHES = ("then_branch", "else_branch")


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


def select(model: ir.Model) -> tuple[Application, ...]:
    """Compute both branches of every If where neither can fail, and drop the results of the one that does not count.

    The same nodes run on the same values as before, so that this is exact.
    """
    names: edit.Names | None = None
    selected: list[Application] = []
    for node in [node for node in model.graph if _can_run_both(node)]:
        names = names or edit.Names(model)
        _splice_both(node, names)
        selected.append(Application(SELECT, node.name or "", EXACT.value))
    return tuple(selected)


def _can_run_both(node: ir.Node) -> bool:
    """True if the node is an If whose branches cannot fail and return floats of the same shapes."""
    if node.domain or node.op_type != "If":
        return False
    branches = [node.attributes[name].as_graph() for name in BRANCHES]
    pairs = zip(*(branch.outputs for branch in branches), strict=True)
    return all(_is_total(inner) for branch in branches for inner in branch) and all(
        _is_known_float(one) and _is_known_float(other) and query.same_shape(one, other) for one, other in pairs
    )


def _is_total(node: ir.Node) -> bool:
    """True if a node gives floats of known shape for all floats: without computed indices and sizes nothing fails."""
    read = [value for value in node.inputs if value is not None and not query.is_constant(value)]
    plain = not any(True for _ in query.bodies(node)) and not randomness.draws(node)
    return plain and all(map(_is_known_float, (*read, *node.outputs)))


def _is_known_float(value: ir.Value) -> bool:
    # A sequence and an optional have the type and the shape of what is in them.
    is_tensor = isinstance(value.type, ir.TensorType)
    return is_tensor and value.dtype == ir.DataType.FLOAT and query.static_shape(value) is not None


def _splice_both(node: ir.Node, names: edit.Names) -> None:
    """Move both branches to where `node` is, and put a choice between their results in its place."""
    graph = node.graph
    assert graph is not None, f"{node.name!r} is in a graph"
    (_, first), (_, second) = (_moved(node, node.attributes[name].as_graph()) for name in BRANCHES)
    for old, one, other in zip(node.outputs, first, second, strict=True):
        choice = ir.node("Where", [node.inputs[0], one, other], name=names.take(f"{node.name}/Where"))
        choice.outputs[0].name = names.take(f"{choice.name}/output")
        graph.insert_before(node, choice)
        edit.describe_as(choice.outputs[0], one)
        edit.replace_value(old, choice.outputs[0], names)
    graph.remove(node, safe=True)


def _taken(node: ir.Node) -> ir.Graph | None:
    """The branch that always runs, or None where that is not known, or the node is no If."""
    if node.domain or node.op_type != "If":
        return None
    condition = query.scalar(node.inputs[0])
    return None if condition is None else node.attributes[BRANCHES[0 if condition else 1]].as_graph()


def _splice(node: ir.Node, branch: ir.Graph, names: edit.Names) -> list[ir.Node]:
    """Move everything in `branch` to where `node` is, and take that out; return the nodes that were moved."""
    nodes, results = _moved(node, branch)
    for old, new in zip(node.outputs, results, strict=True):
        edit.replace_value(old, new, names)
    assert node.graph is not None, f"{node.name!r} is in a graph"
    node.graph.remove(node, safe=True)
    return nodes


def _moved(node: ir.Node, branch: ir.Graph) -> tuple[list[ir.Node], list[ir.Value]]:
    """Move everything in `branch` in front of `node`; return the nodes, and the values that the branch returns."""
    graph, nodes, results = node.graph, list(branch), list(branch.outputs)
    assert graph is not None, f"{node.name!r} is in a graph"
    branch.outputs.clear()
    branch.remove(nodes)
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        graph.initializers[value.name or ""] = value
    graph.insert_before(node, nodes)
    return nodes, results
