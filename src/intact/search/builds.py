"""A build at any precision: one pass through the stages, or for `auto` the search that builds many times.

The searches are loaded by builds that search: to load them takes a third of the time of loading the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from intact.events import Events, Log
from intact.pipeline import stages
from intact.pipeline.execution import Outputs
from intact.pipeline.mending import ENOUGH_DB, Mended
from intact.pipeline.preparation import PreparedModel
from intact.pipeline.stages import BuildOptions
from intact.results import Build
from intact.search.mixed.spendable import may_spend
from intact.settings.config import BuildConfig, CompileConfig
from intact.settings.contradictions import AUTO, check_ways
from intact.targets import faults
from intact.targets.spec import Target


def build_any(
    path: Path,
    config: BuildConfig,
    output: Path,
    options: BuildOptions | None = None,
    *,
    learnt: Path | None = None,
    events: Events | None = None,
) -> Build:
    """Build the model at `path` into the folder `output`; a compiled form that goes wrong names the place.

    With a file of what builds have `learnt`, that is applied, and what this one learns is added.
    """
    options = options or BuildOptions()
    check_ways(config, resume=options.resume, learn=learnt is not None)
    if config.precision == AUTO:
        from intact.search.mixed import cheapest

        return cheapest.build(path, config, output, overwrite=options.overwrite, events=events)
    helped = replace(options, finder=_first_on_device, mender=_mend, recaller=_steer, spender=_spend)
    if learnt is not None:
        from intact.search.mending.learning import Learner

        learner = Learner(learnt)
        helped = replace(helped, mender=learner.mend, recaller=learner.recall)
    return stages.build(path, config, output, helped, events)


def _first_on_device(model: ir.Model, rows: Sequence[Outputs], target: Target, config: CompileConfig) -> str | None:
    from intact.search.debug.device import first_on_device

    return first_on_device(model, rows, target, config)


def _mend(
    model: ir.Model, rows: Sequence[Outputs], target: Target, config: CompileConfig, goal_db: float = ENOUGH_DB
) -> Mended | None:
    from intact.search.mending.mender import mend

    return mend(model, rows, target, config, goal_db)


def _steer(model: ir.Model, rows: Sequence[Outputs], target: Target, config: CompileConfig) -> Mended | None:
    if not faults.are_known(target):
        return None
    from intact.search.mending.steering import steer

    return steer(model, rows, target, config)


def _spend(optimized: PreparedModel, log: Log) -> PreparedModel:
    if not may_spend(optimized):
        return optimized
    from intact.search.mixed.room import spend

    return spend(optimized, log)
