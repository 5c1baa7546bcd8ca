"""`intact.debug`: the first tensor at which two models part ways, or the CPU and the NPU."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact.api.notebook_progress import watched
from intact.api.request import settled
from intact.events import Events, Log, Silence
from intact.runtime import cluster as clusters
from intact.search.debug.debugging import debug_files
from intact.search.debug.findings import Bisection, Destination
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def debug(
    reference: AnyPath,
    candidate: AnyPath | None = None,
    *,
    output: AnyPath | None = None,
    overwrite: bool = False,
    config: BuildConfig | None = None,
    cluster: str | None = None,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Bisection:
    """Find where a candidate parts ways with a reference, and with a `device` where it does with the CPU.

    With `output`, the worst node alone goes into that folder, with inputs and a way to run it. On a `cluster` its
    workers run the simulator.
    """
    save = None if output is None else Destination(Path(output), overwrite)
    second = None if candidate is None else Path(candidate)
    events = watched(events)
    with settled(config, settings) as complete, clusters.used(cluster, events=events):
        return debug_files(Path(reference), second, complete, save=save, log=Log(events or Silence()))
