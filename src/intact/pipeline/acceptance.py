"""The gates of a build: which can be checked at all, and which hold."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from intact import data
from intact.backends import installed
from intact.profiling.measure import time_models
from intact.profiling.timing import latencies
from intact.records import dataclass
from intact.results import Accuracy, Cost, Gate, Placement, TaskAccuracy
from intact.settings import contradictions
from intact.settings.config import BuildConfig
from intact.targets.spec import Target
from intact.verification import gates, remedies

# Gates that need the model to be run.
MEASURED = ("min_sqnr", "min_cosine", "max_accuracy_drop", "max_latency_ratio")
# All gates that a build may have.
GATES = (*MEASURED, "require_npu", "max_cycles")
ROWS_TO_TIME = 8


def check_settings(config: BuildConfig, target: Target) -> None:
    """Refuse gates that cannot be checked, before any work is done."""
    contradictions.check_npu(config, target.name, npu=target.npu)
    contradictions.check_labels(config)
    if config.max_cycles is not None:
        able = installed.estimating()
        contradictions.check_cycles(config, target.name, able, estimates=target.backend in able)
    if config.max_latency_ratio is not None:
        contradictions.check_latency(config, target.name, installed.find(target.backend).untimed, installed.timed())


def unchecked(config: BuildConfig) -> list[str]:
    """The gates that are set and need the model to be run."""
    return [name for name in MEASURED if getattr(config, name) is not None]


def latency_gate(original: Path, deployed: Path, rows: Iterable[data.Feeds], config: BuildConfig) -> Gate | None:
    """The gate on latency, measured now; None where it is not set."""
    if config.max_latency_ratio is None:
        return None
    feeds = list(islice(rows, ROWS_TO_TIME))
    backend = installed.of_file(deployed)
    timer = None if backend is None else backend.timer(config.compile.ep_options)
    _, found = latencies(time_models([original, deployed], feeds, plugins={} if timer is None else {deployed: timer}))
    return ratio_gate(found.ratio_to_first, config.max_latency_ratio, "the deployed model")


def ratio_gate(ratio: float, most: float, what: str) -> Gate:
    """The gate on the latency of `what`, as a multiple of the original's."""
    return remedies.with_remedy(gates.latency_gate(ratio, most, what=what))


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts that the advice of a failed gate has to fit: the kind of calibration and the target, where known."""

    calibration: str | None = None
    target: Target | None = None


def check(
    config: BuildConfig,
    accuracy: tuple[Accuracy, ...],
    task: tuple[TaskAccuracy, ...],
    placement: Placement | None = None,
    *,
    cost: Cost | None = None,
    known: Circumstances | None = None,
) -> tuple[Gate, ...]:
    """Check every gate that is set on what was measured; `task` holds the original's rows too.

    What a failed gate proposes to try fits what is `known` of the build.
    """
    known = known or Circumstances()
    checked = []
    if config.min_sqnr is not None and accuracy:
        checked.append(gates.sqnr_gate(accuracy, config.min_sqnr))
    if config.min_cosine is not None and accuracy:
        checked.append(gates.cosine_gate(accuracy, config.min_cosine))
    if config.max_accuracy_drop is not None and task:
        original = [row for row in task if row.form == "original"]
        forms = [row for row in task if row.form != "original"]
        checked.append(gates.task_gate(original, forms, config.max_accuracy_drop))
    if config.require_npu is not None and placement is not None:
        checked.append(gates.placement_gate(placement, config.require_npu))
    if config.max_cycles is not None and cost is not None:
        checked.append(gates.cycles_gate(cost, config.max_cycles))
    takes = () if known.target is None else known.target.precisions
    return tuple(
        remedies.with_remedy(gate, config.precision, calibration=known.calibration, takes=takes) for gate in checked
    )
