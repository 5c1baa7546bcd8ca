"""Float model in, QDQ model out: plan → observe → resolve → insert. The only quantization path in the program.

Where activations have no grids, the model is brought to half precision (`float16`), or its weights alone are packed
(`weight_only`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from intact.events import Events, Silence
from intact.model import query
from intact.model.garbage_pause import give_back
from intact.quantization import blocks, encodings
from intact.quantization.calibration.observe import Observation, Rows, idle_nodes, observe, observe_beside
from intact.quantization.calibration.resolve import Resolved, candidates, check_constants, resolve
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.calibration.spread import Spread, spreads
from intact.quantization.insert import insert
from intact.quantization.planning import plan_file, unquantizable
from intact.quantization.planning.choose import FLOAT
from intact.quantization.planning.planner import plan
from intact.quantization.planning.rescue import Rescue, rescue
from intact.quantization.planning.uneven import uneven_joins
from intact.quantization.stopwatch import Phase, Stopwatch
from intact.results import QuantPlan, Range
from intact.runtime import algebra, pieces
from intact.settings.config import QuantConfig
from intact.targets.spec import Target

# What a fast effort does without is imported by the functions that use it.
if TYPE_CHECKING:
    from intact.quantization import float16
    from intact.quantization.improve.migrate import Migrated
    from intact.quantization.improve.study import Study

# Errors that say that nothing of a model can have the precision that was asked for: no grids, no weights to pack,
# already or never in half precision. A target that runs float can do without.
NOTHING_TO_QUANTIZE = {"T110", "T113", "M142", "M143"}

# Evening out channels makes those that were hardly seen so large that they fill their grid: that is all the room that
# they had (one of a speech detector left its grid 15 times over). Where more room than this is wanted, none is taken.
MOST_HEADROOM_TO_MOVE = 0.5

# The range of what nobody measured.
ASSUMED = Range(-1.0, 1.0)


@dataclass(frozen=True, slots=True)
class FloatTwin:
    """The float model that grids were put into, whose tensors have the same names, and their spreads by name."""

    model: ir.Model
    spreads: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Known:
    """The facts that are settled before anything is observed.

    `ranges` are those of single tensors, which need not be observed; `types_of_results` is True if somebody reads the
    integers of outputs, and counts on the type that was asked for.
    """

    ranges: Mapping[str, Range] | None = None
    types_of_results: bool = False


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model in fewer bits, the plan that it follows, what was decided on the way, and where the time went.

    `kept` are the nodes that stay in float32 where the others are in half precision; a model with grids has a `twin`.
    """

    model: ir.Model
    plan: QuantPlan
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: Mapping[Phase, float]
    kept: tuple[float16.Kept, ...] = ()
    twin: FloatTwin | None = None


def quantize(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    rows: Rows,
    *,
    known: Known | None = None,
    events: Events | None = None,
) -> QuantizedModel:
    """`model` with a grid on every tensor that `target` wants one on, calibrated on `rows`."""
    events = events or Silence()
    if not config.has_grids:
        return _without_grids(model, target, config, rows, events)
    stopwatch = Stopwatch()
    types, config = plan_file.edited(model, target, config)
    task = _Task(target, config, rows, known or Known(), events, stopwatch)
    found = _calibrated(task, model, types)
    blocked = blocks.split(found.model, found.plan, target, config)
    improved, resolved = _resolved(task, found, blocked)
    notes = (
        *found.observed.notes,
        *([] if found.rescued is None else [str(found.rescued)]),
        *blocked.notes,
        *_substitutes(found.plan, config, found.types, found.rescued),
        *_other_weights(improved, found.plan, config),
    )
    stopwatch.lap("planning")
    if pieces.is_long(improved):
        # Tables of ranges have left much, and the graph is about to become three times as long.
        give_back()
    result = insert(improved, found.plan, resolved)
    stopwatch.lap("qdq_insertion")
    given, seen = found.given, found.seen
    changed = given.changed(resolved.constants)
    warnings = (*given.warnings, *blocked.warnings, *changed, *_nonfinite(seen), *_idle(found.idle))
    twin = FloatTwin(found.model, spreads(found.plan, seen, resolved.tensors))
    return QuantizedModel(result, found.plan, notes, warnings, stopwatch.seconds, twin=twin)


@dataclass(frozen=True, slots=True)
class _Task:
    """The values that every step of one quantization reads."""

    target: Target
    config: QuantConfig
    rows: Rows
    known: Known
    events: Events
    stopwatch: Stopwatch

    @property
    def is_free(self) -> bool:
        """False if encodings are given: those are for the tensors of the model as it is, and nothing may move."""
        return self.config.encodings is None

    @property
    def plans_freely(self) -> bool:
        """True if neither encodings nor ranges are given that a plan would have to keep."""
        return self.is_free and not self.known.ranges and not self.config.calibrate_missing

    @property
    def improves(self) -> bool:
        """True if weights may be moved between layers and rounded with them in view."""
        return self.is_free and self.config.effort != "fast"

    @property
    def may_rescue(self) -> bool:
        """True if nodes may get more bits than they were asked to have."""
        return self.is_free and self.config.rescue and self.config.activation_type in ("uint8", "int8")

    def watched(self, model: ir.Model, plan: QuantPlan) -> tuple[str, ...]:
        """The tensors that are looked at beside those that decide a grid: the ones that 8 bits may not hold."""
        return _on_grids(model, plan) if self.may_rescue else ()

    def planned(self, model: ir.Model, types: Mapping[str, str]) -> encodings.Planned:
        """The plan with these types of nodes."""
        return encodings.planned(model, self.target, self.config, types, self.known.ranges)

    def rescued(self, model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch]) -> Rescue | None:
        """The nodes that need more bits, if any may have them."""
        if not self.may_rescue:
            return None
        settled = self.config.overrides
        return rescue(model, plan, seen, self.target, settled, wide_results=not self.known.types_of_results)


@dataclass(frozen=True, slots=True)
class _Observed:
    """A model with outlying channels moved between layers and words about it, its plan, and what was seen of it.

    `run_seconds` is the time of one pass; `studied` are its layers, where a pass over the moved model looked at them.
    """

    model: ir.Model
    notes: Sequence[str]
    given: encodings.Planned
    seen: Mapping[str, Sketch]
    run_seconds: float
    studied: Sequence[Study] | None = None


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """A model and a plan that fits what was observed, with what decided about it."""

    observed: _Observed
    types: Mapping[str, str]
    idle: Sequence[str]
    rescued: Rescue | None

    @property
    def model(self) -> ir.Model:
        return self.observed.model

    @property
    def given(self) -> encodings.Planned:
        return self.observed.given

    @property
    def plan(self) -> QuantPlan:
        return self.observed.given.plan

    @property
    def seen(self) -> Mapping[str, Sketch]:
        return self.observed.seen


def _observed(task: _Task, model: ir.Model, types: Mapping[str, str]) -> _Observed:
    """Plan and observe; where channels are moved after that, once more."""
    first, stopwatch = plan(model, task.target, task.config, types), task.stopwatch
    lone = unquantizable.lone(model, first, task.target, task.config)
    if lone is not None:
        raise lone
    check_constants(model, first)
    given = encodings.Planned(first) if task.plans_freely else task.planned(model, types)
    stopwatch.lap("planning")
    if not task.improves or task.config.headroom > MOST_HEADROOM_TO_MOVE:
        with task.events.stage("observe", len(task.rows)) as advance:
            seen = observe(model, given.plan, task.rows, watched=task.watched(model, given.plan), progress=advance)
        stopwatch.lap("calibration")
        return _Observed(model, (), given, seen, stopwatch.seconds["calibration"])
    from intact.quantization.improve.migrate import Migration

    migration = Migration(model, first, by_nodes=not task.target.npu)
    stopwatch.lap("smoothing")
    begun = Observation(model, given.plan, watched=task.watched(model, given.plan))
    with task.events.stage("observe", len(task.rows)) as advance:
        seen = observe_beside(begun, migration.watchers(), task.rows, progress=advance)
    stopwatch.lap("calibration")
    run_seconds = stopwatch.seconds["calibration"]
    migrated = migration.apply()
    stopwatch.lap("smoothing")
    before = _Observed(model, (), given, seen, run_seconds)
    return _moved(task, migrated, before, types) if migrated.moved else before


def _moved(task: _Task, migrated: Migrated, before: _Observed, types: Mapping[str, str]) -> _Observed:
    """Observe a model whose channels are moved: the tensors that changed, and in the same run its layers."""
    from intact.quantization.improve.study import by_tensor, expect, studies

    model, given = migrated.model, task.planned(migrated.model, types)
    same = {name: sketch for name, sketch in before.seen.items() if name not in migrated.changed}
    begun = Observation(model, given.plan, watched=task.watched(model, given.plan), known=same)
    whole = blocks.split(model, given.plan, task.target, task.config).whole
    with algebra.one_thread():
        studied = studies(model, whole, len(task.rows))
    expect(studied, given.plan, candidates(given.plan, begun.settled()))
    task.stopwatch.lap("planning")
    with task.events.stage("study the layers", len(task.rows)) as advance, algebra.one_thread():
        seen = observe_beside(begun, by_tensor(studied), task.rows, progress=advance)
    task.stopwatch.lap("study")
    return _Observed(model, migrated.notes(), given, seen, before.run_seconds, studied)


def _calibrated(task: _Task, model: ir.Model, types: Mapping[str, str]) -> _Calibrated:
    """Plan and observe; plan again where nodes are idle, or need more bits than they were given."""
    found, stopwatch = _observed(task, model, types), task.stopwatch
    model, given, seen = found.model, found.given, dict(found.seen)
    idle = idle_nodes(model, given.plan, seen)
    uneven = uneven_joins(model, given.plan, seen, task.target)
    if idle or uneven:
        types = {**types, **dict.fromkeys((*idle, *uneven), FLOAT)}
        given = task.planned(model, types)
    rescued = task.rescued(model, given.plan, seen)
    if rescued is not None:
        # What a plan says of a node stands; rescue decides about the others.
        given = task.planned(model, {**rescued.types, **types})
        stopwatch.lap("planning")
        if any(given.plan.source(entry) not in seen for entry in given.plan.observed):
            seen |= observe(model, given.plan, task.rows)
            stopwatch.lap("calibration")
    studied = found.studied if given is found.given else None
    return _Calibrated(replace(found, given=given, seen=seen, studied=studied), types, idle, rescued)


def _resolved(task: _Task, found: _Calibrated, blocked: blocks.Blocked) -> tuple[ir.Model, Resolved]:
    """The grids of all tensors, and the model that they are for: improved, where there is time for it."""
    model = found.model
    if task.improves:
        from intact.quantization.improve import improve
        from intact.quantization.improve.effort import Effort

        effort = Effort(found.observed.run_seconds, task.events, task.stopwatch)
        with algebra.one_thread():
            return improve(model, blocked, found.seen, task.rows, effort=effort, studied=found.observed.studied)
    resolved = blocks.resolve(model, blocked, resolve(model, blocked.rest, found.seen, found.given.weights))
    task.stopwatch.lap("rounding")
    return model, resolved


def quantize_unseen(model: ir.Model, target: Target, config: QuantConfig) -> ir.Model:
    """`model` with the types that it would get, on grids that nobody measured: to see where its nodes would run."""
    plain = config.model_copy(update={"effort": "fast", "rescue": False})
    if not config.has_grids or config.encodings is not None:
        return quantize(model, target, plain, ()).model
    first = plan(model, target, plain, plan_file.edited(model, target, plain)[0])
    ranges = dict.fromkeys(map(first.source, first.tensors), ASSUMED)
    return quantize(model, target, plain, (), known=Known(ranges)).model


def _without_grids(model: ir.Model, target: Target, config: QuantConfig, rows: Rows, events: Events) -> QuantizedModel:
    """`model` in half precision, or with weights in few bits beside float activations."""
    stopwatch = Stopwatch()
    kept: tuple[float16.Kept, ...] = ()
    if config.activation_type == "float16":
        from intact.quantization import float16

        with events.stage("observe", len(rows)) as advance:
            half = float16.convert(model, config, rows, device=target, progress=advance)
        result, nodes, notes, kept = half.model, half.nodes, half.notes, half.kept
        stopwatch.lap("calibration")
    else:
        from intact.quantization.weight_only import packed_products

        with algebra.one_thread():
            packed = packed_products.pack(model, target, config, rows, events)
        result, nodes, notes = packed.model, packed.nodes, packed.notes
        stopwatch.lap("rounding")
    plan = QuantPlan(dict.fromkeys(nodes, config.activation_type), {}, {}, {}, (), (), {}, ())
    return QuantizedModel(result, plan, notes, (), stopwatch.seconds, kept)


def _substitutes(plan: QuantPlan, config: QuantConfig, types: Mapping[str, str], rescued: Rescue | None) -> list[str]:
    """A note for nodes that have another type than was asked for, because the target does not take that there."""
    expected = {**(rescued.types if rescued is not None else {}), **types}
    others = [n for n, dtype in plan.nodes.items() if dtype != expected.get(n, config.activation_type)]
    return (
        [f"{len(others)} nodes use another type than {config.activation_type}: {', '.join(others)}"] if others else []
    )


def _other_weights(model: ir.Model, plan: QuantPlan, config: QuantConfig) -> list[str]:
    """A note for matrices and filters that have another type than was asked for, by neither settings nor file."""
    free = [w for w in plan.weights if config.encodings is None and w.tensor not in config.overrides]
    shapes = {name: value.shape for name, value in query.initializers(model).items()}
    others = [w for w in free if w.dtype != config.weight_type and len(shapes[w.tensor] or ()) > 1]
    listed = ", ".join(f"{w.node} ({w.dtype})" for w in others)
    return [f"weights that the target does not take as {config.weight_type}: {listed}"] if others else []


def _on_grids(model: ir.Model, plan: QuantPlan) -> tuple[str, ...]:
    """The computed tensors that have grids: those that 8 bits may not hold."""
    constants = query.initializers(model)
    return tuple(name for name in dict.fromkeys(map(plan.source, plan.tensors)) if name not in constants)


def _idle(nodes: Sequence[str]) -> list[str]:
    return [f"no sample runs {len(nodes)} nodes, which stay in float: {', '.join(nodes)}"] if nodes else []


def _nonfinite(seen: Mapping[str, Sketch]) -> list[str]:
    return [
        f"{name}: {sketch.nonfinite} NaN or infinite values were left out of its range"
        for name, sketch in seen.items()
        if sketch.nonfinite
    ]


__all__ = ["QuantizedModel", "Rescue", "plan", "quantize"]
