"""`intact.export`: a Hugging Face model as an ONNX file that computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact.api.request import export_to, settled
from intact.events import Events, Log, Silence
from intact.exporting import origin
from intact.pipeline import input_files
from intact.reports import publish
from intact.results import Origin
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def export(
    name: str,
    *,
    output: AnyPath,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Origin:
    """Export the Hugging Face model `name` into the ONNX file `output`, and compare it with torch."""
    place, log = Path(output), Log(events or Silence())
    with settled(config, settings) as complete:
        input_files.protect(place, complete, Path(name))
        publish.check_file(place, overwrite=overwrite, ours=False)
        place.parent.mkdir(parents=True, exist_ok=True)
        found = export_to(name, complete, place, log)
    log.warn(*origin.warnings(found))
    return found
