"""Gates: what must hold of a finished build."""

from __future__ import annotations

from collections.abc import Sequence

from intact.results import Accuracy, Gate, Placement
from intact.vendor.placement import compute_nodes


def sqnr_gate(rows: Sequence[Accuracy], least: float) -> Gate:
    """Every output of every form has at least `least` dB; identical outputs pass any gate."""
    values = [(row.sqnr_db, row) for row in rows if row.sqnr_db is not None]
    if not values:
        return Gate("min_sqnr", least, None, True, "every output is identical to the original's")
    worst, row = min(values, key=lambda pair: pair[0])
    where = f"{row.output} of the {row.form} model on {row.runtime}"
    return Gate("min_sqnr", least, worst, worst >= least, f"the least SQNR is {worst:.2f} dB, at {where}")


def placement_gate(placement: Placement, least: float) -> Gate:
    """At least `least` percent of the nodes that compute something are on the NPU; each that is not is named."""
    on, off = compute_nodes(placement.npu_nodes), compute_nodes(placement.cpu_nodes)
    percent = 100 * len(on) / (len(on) + len(off)) if on else 0.0
    named = "".join(f"\n  {node.name} ({node.op}): {node.reason}" for node in off)
    detail = f"{len(on)} of {len(on) + len(off)} compute nodes are on the NPU"
    return Gate("require_npu", least, percent, percent >= least, f"{detail}; on the CPU:{named}" if off else detail)
