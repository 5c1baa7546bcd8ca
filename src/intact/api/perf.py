"""`intact.perf`: latency, memory and slowest operators of models beside each other."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Unpack

from intact.api.notebook_progress import watched
from intact.api.request import settled
from intact.events import Events, Log, Silence
from intact.pipeline import acceptance, execution, trial, verdict
from intact.pipeline.model_files import inputs_for_comparison
from intact.profiling import measure as performance
from intact.profiling.measure import Measurement
from intact.records import dataclass
from intact.results import Gate, Verdict
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


@dataclass(frozen=True, slots=True)
class Timing:
    """Models timed in turns, and the gate on the slowest where one was set."""

    measurement: Measurement
    gate: Gate | None = None

    @property
    def gates(self) -> tuple[Gate, ...]:
        return () if self.gate is None else (self.gate,)

    @property
    def judged(self) -> Verdict:
        """The verdict of the gate."""
        return verdict.of_gates(self.gates)


def perf(
    *models: AnyPath,
    threads: int = 0,
    rounds: int | None = None,
    config: BuildConfig | None = None,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Timing:
    """Time model files beside each other on the same rows."""
    paths = tuple(map(Path, models))
    log = Log(watched(events) or Silence())
    with settled(config, settings) as complete:
        plugins = execution.plugins(paths)
        for path in (path for path in paths if path not in plugins):
            performance.refuse_compiled(path)
        trial.check_files(*paths)
        inputs = inputs_for_comparison(execution.described(paths[0]), complete, log)
        rows = list(islice(inputs.test, acceptance.ROWS_TO_TIME))
        with log.stage("perf", rounds) as (advance, _):
            found = performance.measure(paths, rows, plugins=plugins, threads=threads, rounds=rounds, advance=advance)
    most = complete.max_latency_ratio
    if most is None or len(paths) == 1:
        return Timing(found)
    slowest = max(found.models[1:], key=lambda model: model.latency.ratio_to_first)
    return Timing(found, acceptance.ratio_gate(slowest.latency.ratio_to_first, most, slowest.path))
