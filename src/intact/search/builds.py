"""A build at any precision: one pass through the stages, or for `auto` the search that builds many times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from intact.events import Events
from intact.pipeline import stages
from intact.pipeline.stages import BuildOptions
from intact.results import Build
from intact.search.debug.device import first_on_device
from intact.search.mending.learning import Learner
from intact.search.mending.mender import mend
from intact.search.mending.steering import steer
from intact.search.mixed import cheapest
from intact.search.mixed.room import spend
from intact.settings.config import BuildConfig
from intact.settings.contradictions import AUTO, check_ways


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
        return cheapest.build(path, config, output, overwrite=options.overwrite, events=events)
    learner = None if learnt is None else Learner(learnt)
    helped = replace(
        options,
        finder=first_on_device,
        mender=mend if learner is None else learner.mend,
        recaller=steer if learner is None else learner.recall,
        spender=spend,
    )
    return stages.build(path, config, output, helped, events)
