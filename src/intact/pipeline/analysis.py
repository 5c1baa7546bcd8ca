"""An analysis as values that a command can print: what is on the NPU, what is not and why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import onnx_ir as ir

from intact.backends.live import place_live
from intact.targets.placement import in_float, place
from intact.targets.spec import Target


def analyze(model: ir.Model, target: Target, *, live: bool = False, timeout: float = 1800.0) -> dict[str, Any]:
    """Where the compute nodes of a quantized model run on `target`: by its table, or if `live` by its library."""
    placement = place_live(model, target, timeout=timeout) if live else place(model, target)
    total = len(placement.npu_nodes) + len(placement.cpu_nodes)
    return {
        "target": target.name,
        "soc": target.soc.name if target.soc is not None else None,
        "has_npu": target.npu,
        "method": "library" if live else "table",
        "compute_nodes": total,
        "npu_percent": round(100 * len(placement.npu_nodes) / total, 2) if total else 0.0,
        "partitions": placement.partitions,
        "npu_nodes": [{"name": node.name, "op": node.op} for node in placement.npu_nodes],
        "cpu_nodes": [asdict(node) for node in placement.cpu_nodes],
        "float_nodes": [{"name": node.name, "op": node.op} for node in in_float(model, target)],
    }
