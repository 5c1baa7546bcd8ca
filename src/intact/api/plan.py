"""`intact.plan`: what would be quantized, and how, as a file to read and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact import scratch
from intact.api.request import requested
from intact.errors import SettingsError
from intact.events import Events, Log, Silence
from intact.pipeline import input_files, loading, preparation, presets
from intact.quantization import quantizing
from intact.quantization.planning import plan_file
from intact.reports import publish
from intact.results import QuantPlan
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords


def plan(
    model: AnyPath | None = None,
    *,
    output: AnyPath,
    hf: str | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> QuantPlan:
    """Write which tensors would get which grid into the file `output`; nothing is run, no data is needed."""
    place = Path(output)
    with requested(model, hf, config, settings, events) as given:
        written_before = place.is_file() and place.read_bytes()[:200].startswith(plan_file.HEADER.encode()[:20])
        input_files.protect(place, given.config, given.path)
        publish.check_file(place, overwrite=overwrite, ours=written_before)
        log = Log(events or Silence())
        source = loading.load(given.path, given.config, log)
        resolved = presets.resolve(given.config, quantized=source.quantized)
        quant = resolved.quantization
        if quant is None or not quant.has_grids:
            raise SettingsError("S114", f"{given.path}: nothing to plan: {source.quantized or resolved.precision}")
        target = presets.available(resolved)
        preparation.announce(resolved, target, log.events)
        ready = preparation.optimize_for(source.model, target, quant).model if resolved.optimize else source.model
        types, quant = plan_file.edited(ready, target, quant)
        planned = quantizing.plan(ready, target, quant, types)
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(place, plan_file.to_text(planned, target, quant))
    return planned
