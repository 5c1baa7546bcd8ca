"""Gates: what must hold of a finished build."""

from __future__ import annotations

from collections.abc import Sequence

from intact.results import Accuracy, Cost, Gate, Placement, TaskAccuracy
from intact.targets.provider_placement import compute_nodes


def sqnr_gate(rows: Sequence[Accuracy], least: float) -> Gate:
    """Every output of every form has at least `least` dB; identical outputs pass any gate."""
    values = [(row.sqnr_db, row) for row in rows if row.sqnr_db is not None]
    if not values:
        return Gate("min_sqnr", least, None, True, "every output is identical to the original's")
    worst, row = min(values, key=lambda pair: pair[0])
    return Gate("min_sqnr", least, worst, worst >= least, f"the least SQNR is {worst:.2f} dB, at {_where(row)}")


def cosine_gate(rows: Sequence[Accuracy], least: float) -> Gate:
    """Every output of every form has a cosine of at least `least`; one that is not defined counts as 0."""
    values = [(row.cosine if row.cosine is not None else 0.0, row) for row in rows if not row.identical]
    if not values:
        return Gate("min_cosine", least, None, True, "every output is identical to the original's")
    worst, row = min(values, key=lambda pair: pair[0])
    return Gate("min_cosine", least, worst, worst >= least, f"the least cosine is {worst:.6f}, at {_where(row)}")


def task_gate(original: Sequence[TaskAccuracy], forms: Sequence[TaskAccuracy], most: float) -> Gate:
    """No form loses more than `most` percentage points of the original's accuracy."""
    before = {row.output: row for row in original}
    drops = [(100 * (before[row.output].correct - row.correct) / row.total, row) for row in forms]
    worst, row = max(drops, key=lambda pair: pair[0])
    first = before[row.output]
    figures = f"{first.correct} of {first.total} right before, {row.correct} by {_where(row)}"
    moved = f"{worst:.2f} points of accuracy are lost" if worst > 0 else "no accuracy is lost"
    return Gate("max_accuracy_drop", most, worst, worst <= most, f"{moved}: {figures}")


def latency_gate(ratio: float, most: float, *, what: str) -> Gate:
    """An inference takes at most `most` times as long as the original's."""
    return Gate("max_latency_ratio", most, ratio, ratio <= most, f"{what} takes {ratio:.3f} times as long")


def placement_gate(placement: Placement, least: float) -> Gate:
    """At least `least` percent of the nodes that compute something are on the NPU; each that is not is named."""
    if not placement.has_npu:
        detail = f"the model is compiled for the {placement.place}, not for an NPU"
        return Gate("require_npu", least, 0.0, False, detail)
    on, off = compute_nodes(placement.npu_nodes), compute_nodes(placement.cpu_nodes)
    percent = 100 * len(on) / (len(on) + len(off)) if on else 0.0
    named = "".join(f"\n  {node.name} ({node.op}): {node.reason}" for node in off)
    detail = f"{len(on)} of {len(on) + len(off)} compute nodes are on the NPU"
    return Gate("require_npu", least, percent, percent >= least, f"{detail}; on the CPU:{named}" if off else detail)


def cycles_gate(cost: Cost, most: int) -> Gate:
    """An inference takes at most `most` cycles, by the estimate of the vendor's compiler."""
    detail = f"the compiler estimates {cost.cycles} cycles an inference"
    return Gate("max_cycles", most, cost.cycles, cost.cycles <= most, detail)


def _where(row: Accuracy | TaskAccuracy) -> str:
    return f"{row.output} of the {row.form} model on {row.runtime}"
