"""Predict the placement of a model's nodes from a target's table alone: no vendor package is needed."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.model import query
from intact.results import PlacedNode, Placement, Violation
from intact.targets.match import nearest
from intact.targets.operands import FREE, use_of
from intact.targets.spec import Target
from intact.targets.validate import compute_nodes, violations_of


def place(model: ir.Model, target: Target) -> Placement:
    """Predict which compute nodes of `model` the NPU of `target` takes, why not the others, and in how many pieces."""
    off = {node: found for node in compute_nodes(model, target) if (found := violations_of(node, target))}
    compute = [node for node in query.all_nodes(model) if node.op_type not in FREE]
    absent = {node: _reason(found, target) for node, found in off.items()}
    return Placement(
        npu_nodes=tuple(_placed(node) for node in compute if node not in absent),
        cpu_nodes=tuple(_placed(node, absent[node]) for node in compute if node in absent),
        partitions=_partitions(model, absent),
    )


def in_float(model: ir.Model, target: Target) -> tuple[PlacedNode, ...]:
    """The nodes that the NPU takes but computes in float, between conversions of its own."""
    nodes = [node for node in compute_nodes(model, target) if _runs_in_float(node, target)]
    return tuple(_placed(node) for node in nodes)


def _runs_in_float(node: ir.Node, target: Target) -> bool:
    use = use_of(node, target.clipping)
    spec = target.op(use.domain, use.op)
    closest = nearest(use, spec, target) if spec is not None else None
    return closest is not None and not closest[1] and closest[0].runs == "float"


def _placed(node: ir.Node, reason: str = "") -> PlacedNode:
    return PlacedNode(node.name or "?", node.op_type, reason)


def _reason(violations: list[Violation], target: Target) -> str:
    """The reason against a node, and the change that would help; without an NPU it simply runs in float."""
    found = "; ".join(f"[{v.code}] {v.found}; {v.requirement}" for v in violations)
    return f"{found} ({violations[0].source}). {violations[0].fix if target.npu else 'it is computed in float'}"


def _partitions(model: ir.Model, absent: Mapping[ir.Node, str]) -> int:
    """Count the pieces in which the NPU gets the main graph: it runs as far as it can, then the CPU does, and so on."""
    waiting = [node for node in model.graph if node.op_type != "Constant"]
    pieces, on_npu = 0, True
    while waiting:
        ran = _run(waiting, {node for node in waiting if (node not in absent) == on_npu})
        pieces += on_npu and any(node.op_type not in FREE for node in ran)
        waiting = [node for node in waiting if node not in ran]
        on_npu = not on_npu
    return pieces


def _run(waiting: list[ir.Node], able: set[ir.Node]) -> set[ir.Node]:
    """The nodes that can run now, given that those in `able` may: nodes are in order, so one walk finds them."""
    pending, ran = set(waiting), set()
    for node in waiting:
        if node in able and not any(v is not None and v.producer() in pending for v in node.inputs):
            pending.remove(node)
            ran.add(node)
    return ran
