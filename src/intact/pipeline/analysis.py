"""An analysis of a quantized model: the nodes that a target takes, those that it does not, and why."""

from __future__ import annotations

import onnx_ir as ir

from intact.backends.live import place_live
from intact.results import Analysis, NodeFacts, Placement
from intact.settings.config import CompileConfig
from intact.targets.placement import in_float, place
from intact.targets.spec import Target
from intact.targets.validate import doubts


def analyze(model: ir.Model, target: Target, live: CompileConfig | None = None) -> Analysis:
    """Place the compute nodes of a quantized model on `target`: by its table, or as `live` says by its library."""
    placement = place(model, target) if live is None else _by_library(model, target, live)
    total = len(placement.npu_nodes) + len(placement.cpu_nodes)
    return Analysis(
        target=target.name,
        soc=target.soc.name if target.soc is not None else None,
        has_npu=target.npu,
        method="table" if live is None else "library",
        compute_nodes=total,
        npu_percent=round(100 * len(placement.npu_nodes) / total, 2) if total else 0.0,
        partitions=placement.partitions,
        npu_nodes=tuple(NodeFacts(node.name, node.op) for node in placement.npu_nodes),
        cpu_nodes=placement.cpu_nodes,
        float_nodes=tuple(NodeFacts(node.name, node.op) for node in in_float(model, target)),
        doubts=doubts(model, target),
    )


def _by_library(model: ir.Model, target: Target, settings: CompileConfig) -> Placement:
    return place_live(model, target, timeout=settings.timeout, toolchain=settings.toolchain)
