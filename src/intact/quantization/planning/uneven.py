"""Finds tensors that are joined for a reader in float, and differ too much in size to share a grid for that alone."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.model import query
from intact.quantization.calibration.sketch import Sketch
from intact.results.grid_plan import QuantPlan
from intact.targets.spec import Target

# A grid for the largest keeps a bit less of one that is half as large.
MOST_TIMES_AS_LARGE = 2.0


def uneven_joins(model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch], target: Target) -> list[str]:
    """The nodes that join tensors which nothing on grids reads, one of them more than twice as large as another."""
    if target.halves:
        return []
    nodes = [node for node in query.all_nodes(model) if node.name in plan.nodes]
    return [node.name or "" for node in nodes if _is_alone(node, plan, target) and _is_uneven(node, plan, seen)]


def _is_alone(node: ir.Node, plan: QuantPlan, target: Target) -> bool:
    spec = target.op(node.domain, node.op_type)
    readers = {reader.name for value in node.outputs for reader in value.consumers()}
    return spec is not None and spec.joined_alone and readers.isdisjoint(plan.nodes)


def _is_uneven(node: ir.Node, plan: QuantPlan, seen: Mapping[str, Sketch]) -> bool:
    grid = plan.tensors.get(node.outputs[0].name or "")
    sketches = [seen[plan.source(entry)] for entry in plan.observed if plan.tensors[entry] == grid]
    sizes = [max(abs(sketch.low), abs(sketch.high)) for sketch in sketches if sketch.count]
    return bool(sizes) and max(sizes) > MOST_TIMES_AS_LARGE * min(sizes)
