"""A build at any precision: one pass through the stages, or for `auto` the search that builds many times."""

from __future__ import annotations

from pathlib import Path

from intact.errors import SettingsError
from intact.events import Events
from intact.pipeline import presets, stages
from intact.pipeline.stages import BuildOptions
from intact.results import Build
from intact.search.debug.device import first_on_device
from intact.search.mending.learning import Learner
from intact.search.mending.mender import mend
from intact.search.mixed import cheapest
from intact.settings.config import BuildConfig


def build_any(
    path: Path,
    config: BuildConfig,
    output: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    learnt: Path | None = None,
    events: Events | None = None,
) -> Build:
    """Build the model at `path` into the folder `output`; a compiled form that goes wrong names the place.

    With a file of what builds have `learnt`, that is applied, and what this one learns is added.
    """
    if config.precision == presets.AUTO and resume:
        raise SettingsError(
            "S222",
            "--resume keeps stages of one build, and --precision auto makes many",
            fix="leave --resume out; a mix that was found is built again with --plan plan.toml --resume",
        )
    if learnt is not None and resume:
        fix = "leave one of them out"
        raise SettingsError("S209", "--learn changes what --resume would go on from", fix=fix)
    if config.precision == presets.AUTO:
        if learnt is not None:
            fix = "build with --plan and the plan.toml that auto writes"
            raise SettingsError("S208", "--learn: --precision auto builds many times, and keeps one build", fix=fix)
        return cheapest.build(path, config, output, overwrite=overwrite, events=events)
    learner = None if learnt is None else Learner(learnt)
    options = BuildOptions(
        overwrite=overwrite,
        finder=first_on_device,
        mender=mend if learner is None else learner.mend,
        recaller=None if learner is None else learner.recall,
        resume=resume,
    )
    return stages.build(path, config, output, options, events)
