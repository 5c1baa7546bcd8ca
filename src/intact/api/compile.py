"""`intact.compile`: the vendor's toolchain on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact.api.notebook_progress import watched
from intact.api.request import requested
from intact.events import Events
from intact.pipeline import stages
from intact.pipeline.stages import BuildOptions
from intact.results import Build
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def compile(
    model: AnyPath | None = None,
    *,
    output: AnyPath,
    hf: str | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Build:
    """Compile a model for a device without verifying it; a float model is quantized first, as `build` would."""
    options = BuildOptions(overwrite=overwrite, verify=False)
    events = watched(events)
    with requested(model, hf, config, settings, events) as given:
        return stages.build(given.path, given.config, Path(output), options, events)
