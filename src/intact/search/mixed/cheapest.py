"""Mixed precision: the cheapest assignment of precisions that meets the gates of a build.

The noise of every group of nodes is measured once, on rows of the calibration. It gives a curve: assignments of which
each is more accurate than all that cost less. A point of the curve that costs less than every one precision throughout
that meets the gates is then looked for (see `hunt`), compiled, and verified where the model will run.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

from intact import scratch
from intact.errors import SettingsError
from intact.events import Events, Log, Silence
from intact.pipeline import preparation, recording, stages
from intact.pipeline.preparation import PreparedModel
from intact.quantization import quantizing
from intact.quantization.planning import plan_file
from intact.reports import publish
from intact.results import Artifact, Build, CostEstimate, Search, SearchPoint
from intact.search.mixed import sensitivity
from intact.search.mixed.curve import Curve, curve_of
from intact.search.mixed.hunt import Hunt
from intact.search.mixed.ladder import Assignment
from intact.search.mixed.workbench import Workbench
from intact.settings.config import BuildConfig
from intact.settings.contradictions import check_search

PLAN = "plan.toml"
# Points of the curve that the manifest keeps, beside those that were tried.
POINTS_KEPT = 40


def build(
    path: Path, config: BuildConfig, output: Path, *, overwrite: bool = False, events: Events | None = None
) -> Build:
    """Build the cheapest mix of precisions that meets the gates.

    A goal that no mix meets does not raise: the best that was found is in the folder, and its gate has failed.
    """
    check_search(config)
    stages.check(path, config, output, overwrite=overwrite)
    log = Log(events or Silence())
    loaded, upgrade = preparation.begin(path, config, log)
    begun = preparation.optimize(loaded, log)
    upgrade.confirm(log)
    if begun.source.quantized is not None:
        raise SettingsError("S107", f"--precision auto: {begun.source.quantized}", fix="start from the float model")
    with scratch.folder("search") as folder:
        with log.stage("search") as (_, details):
            found = curve_of(begun, log.events)
            log.events.note(str(found))
            bench = Workbench(begun, found, log, Path(folder))
            hunt = Hunt(found.front, found.uniform, bench, config.min_sqnr)
            with log.events.stage("try mixes, at most", hunt.most_steps) as bench.advance:
                chosen = hunt.find() or bench.nearest()
            details["groups"] = len(found.found.groups)
            details["assignments_tried"] = len(hunt.tried)
            details["builds"] = len(bench.builds) + len(bench.errors)
        return _publish(chosen, hunt, bench, output, overwrite=overwrite)


def _publish(chosen: Assignment, hunt: Hunt, bench: Workbench, output: Path, *, overwrite: bool) -> Build:
    """Put a build in its place, with its plan, and with the search in its manifest and report."""
    built, where = bench.builds[chosen]
    for warning in built.warnings[len(bench.log.warnings) :]:
        bench.log.events.warn(warning)
    with publish.staged(output, overwrite=overwrite, tell=bench.log.events.note) as folder:
        shutil.copytree(where, folder, dirs_exist_ok=True)
        artifacts = (*built.artifacts, *_plan(built, bench.begun, folder))
        stages = (*bench.log.stages, *(stage for stage in built.stages if stage not in bench.log.stages))
        search = _record(chosen, hunt, bench.curve)
        estimate = _estimate(search, bench.curve)
        result = replace(built, stages=stages, search=search, estimate=estimate, artifacts=artifacts)
        recording.write_down(result, folder)
    return result


def _plan(built: Build, begun: PreparedModel, folder: Path) -> tuple[Artifact, ...]:
    """Write the plan of a build beside it; half precision throughout has no grids to plan."""
    quant = BuildConfig.from_dict(built.config).quantization
    assert quant is not None, "a mix of precisions is quantized"
    if not quant.has_grids:
        return ()
    planned = quantizing.plan(begun.model, begun.target, quant, quant.types)
    (folder / PLAN).write_text(plan_file.to_text(planned, begun.target, quant), encoding="utf-8")
    return tuple(publish.artifacts(folder, {PLAN: "plan of the mix, for --plan"}))


def _record(chosen: Assignment, hunt: Hunt, curve: Curve) -> Search:
    """The search as the manifest has it; what was tried has the cost of the model that was written."""
    step = max(1, math.ceil(len(curve.front) / POINTS_KEPT))
    kept = list(dict.fromkeys([*curve.front[::step], curve.front[-1], chosen, *hunt.tried]))
    points = {assignment: _point(assignment, hunt, curve) for assignment in kept}
    kept.sort(key=lambda assignment: (points[assignment].cost, points[assignment].predicted_db))
    uniform = curve.throughout()
    for assignment in reversed(hunt.uniform):
        if assignment in hunt.tried:
            uniform[_level(assignment, curve)] = hunt.tried[assignment].cost
    return Search(
        tuple(points[assignment] for assignment in kept),
        kept.index(chosen),
        {name: round(cost, 6) for name, cost in uniform.items()},
        curve.sensitivity(sensitivity.NAMED),
        curve.source,
    )


def _estimate(search: Search, curve: Curve) -> CostEstimate:
    """The cost of the chosen point against that of the last level throughout, which is float."""
    last = curve.levels[-1]
    ratio = search.points[search.chosen].cost / search.uniform[last.name]
    return CostEstimate(ratio, 8 * int(last.bytes[0]), search.cost_source)


def _level(uniform: Assignment, curve: Curve) -> str:
    """The name of the level that a precision throughout has."""
    return curve.levels[max(uniform.levels)].name


def _point(found: Assignment, hunt: Hunt, curve: Curve) -> SearchPoint:
    trial, predicted = hunt.tried.get(found), round(found.predicted_db, 4)
    if trial is None:
        return SearchPoint(round(found.cost, 6), predicted, curve.groups_of(found))
    return SearchPoint(
        cost=round(trial.cost, 6),
        predicted_db=predicted,
        groups=trial.groups,
        measured_db=trial.measured_db,
        compiled_db=trial.compiled_db,
        passed=trial.passed,
    )
