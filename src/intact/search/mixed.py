"""Mixed precision: the cheapest assignment of precisions that meets the gates of a build.

The noise of every group of nodes is measured once, on rows of the calibration. It gives a curve: assignments of which
each is more accurate than all that cost less. A point of the curve is then looked for by quantizing and running on the
CPU, compiled, and verified where the model will run; where that falls short, the next point that should do is built.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from intact import pipeline, preparation, quantize
from intact.config import BuildConfig, QuantConfig
from intact.errors import SettingsError
from intact.events import Events, Log, Silence
from intact.quantize import plan_file, presets
from intact.report import publish
from intact.results import Build
from intact.search.curve import curve_of
from intact.search.device import first_on_device
from intact.search.hunt import GOALS, Hunt
from intact.search.ladder import Assignment

# What the search decides itself.
_DECIDED = {"activation_type", "weight_type", "types", "plan", "encodings"}
PLAN = "plan.toml"


def build(
    path: Path,
    config: BuildConfig,
    output: Path,
    *,
    overwrite: bool = False,
    events: Events | None = None,
) -> Build:
    """What `pipeline.build` does, at any precision: for `auto`, the cheapest mix that meets the gates is searched for.

    A goal that no mix meets does not raise: the best that was found is in the folder, and its gate has failed.
    """
    if config.precision != presets.AUTO:
        return pipeline.build(path, config, output, overwrite=overwrite, events=events, finder=first_on_device)
    check_settings(config)
    pipeline.check(config, output, overwrite=overwrite)
    log = Log(events or Silence())
    begun = preparation.begin(path, config, log)
    if begun.source.quantized is not None:
        raise SettingsError("S107", f"--precision auto: {begun.source.quantized}", fix="start from the float model")
    with log.stage("search") as (_, details):
        found = curve_of(begun)
        log.events.note(str(found))
        hunt = Hunt(begun, found, log)
        details["groups"] = len(found.found.groups)
        chosen = hunt.find()
        details["assignments_tried"] = len(hunt.tried)
    with tempfile.TemporaryDirectory(prefix="intact-") as folder:
        chosen, built, where = hunt.build(chosen, Path(folder))
        return _publish(chosen, built, where, hunt, output, overwrite=overwrite)


def check_settings(config: BuildConfig) -> None:
    """Refuse, before any work, a search without a goal, or one whose outcome is set already."""
    if all(getattr(config, goal) is None for goal in GOALS):
        fix = "add --min-sqnr 30, --min-cosine 0.999, or --max-accuracy-drop 0.5 with --labels"
        raise SettingsError("S106", "--precision auto needs a goal: the cheapest mix that meets what?", fix=fix)
    quant = config.quantization
    settled = sorted(quant.model_fields_set & _DECIDED) if quant is not None else []
    if settled:
        raise SettingsError("S108", f"--precision auto decides about {', '.join(settled)}", fix="leave them out")


def _publish(chosen: Assignment, built: Build, where: Path, hunt: Hunt, output: Path, *, overwrite: bool) -> Build:
    """Put a build in its place, with its plan, and with the search in its manifest and report."""
    begun = hunt.begun
    for warning in built.warnings[len(hunt.log.warnings) :]:
        hunt.log.events.warn(warning)
    quant = QuantConfig.from_dict(built.config["quant"] or built.config["compile"]["quant"])
    planned = quantize.plan(begun.model, begun.target, quant, quant.types)
    with publish.staged(output, overwrite=overwrite) as folder:
        shutil.copytree(where, folder, dirs_exist_ok=True)
        (folder / PLAN).write_text(plan_file.to_text(planned, begun.target, quant), encoding="utf-8")
        plan_of_it = publish.artifacts(folder, {PLAN: "plan of the mix, for --plan"})
        stages = (*hunt.log.stages, *(stage for stage in built.stages if stage not in hunt.log.stages))
        artifacts = (*built.artifacts, *plan_of_it)
        result = replace(built, stages=stages, search=hunt.record(chosen), artifacts=artifacts)
        pipeline.write_down(result, folder)
    return result
