"""Mixed precision: the cheapest assignment of precisions that meets the gates of a build.

The noise of every group of nodes is measured once, on rows of the calibration. It gives a curve: assignments of which
each is more accurate than all that cost less. A point of the curve is then looked for by quantizing and running on the
CPU, compiled, and verified where the model will run; where that falls short, the next point that should do is built.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from intact import acceptance, data, execution, pipeline, quantize
from intact.config import BuildConfig, QuantConfig, TensorOverride
from intact.errors import SettingsError, TargetError
from intact.events import Events, Log, Silence
from intact.graph import shapes
from intact.pipeline import Prepared
from intact.quantize import plan_file, presets
from intact.quantize.improve.smooth import smooth
from intact.report import publish
from intact.results import Accuracy, Build, Form, Gate, Search, SearchPoint, Sensitivity
from intact.search import groups, sensitivity
from intact.search.cost import Prices, work
from intact.search.groups import FLOAT, Structure
from intact.search.ladder import Assignment, Ladder
from intact.targets.spec import Level
from intact.verify.compare import Runner, measure

GOALS = ("min_sqnr", "min_cosine", "max_accuracy_drop")
# What the search decides itself.
_DECIDED = {"activation_type", "weight_type", "types", "plan", "encodings"}
PLAN = "plan.toml"
# How many assignments are quantized and run on the CPU, and how many are built.
MOST_TRIES, MOST_BUILDS = 8, 5
ROWS = 64
# An assignment that exceeds its goal by no more than this is cheap enough.
ENOUGH_DB = 0.5
# How often one with more to spare is made cheaper, and the share of the room that is used at first.
MOST_TRIMS, TRIMMED = 3, 0.8
# Points of the curve that the manifest keeps, beside those that were tried, and groups that it names.
POINTS_KEPT, GROUPS_NAMED = 40, 10


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
        return pipeline.build(path, config, output, overwrite=overwrite, events=events)
    check_settings(config)
    pipeline.check(config, output, overwrite=overwrite)
    log = Log(events or Silence())
    begun = pipeline.begin(path, config, log)
    if begun.source.quantized is not None:
        raise SettingsError("S107", f"--precision auto: {begun.source.quantized}", fix="start from the float model")
    with log.stage("search") as (_, details):
        found = curve(begun)
        log.events.note(str(found))
        hunt = _Hunt(begun, found, log)
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


@dataclass(frozen=True, slots=True)
class Curve:
    """Assignments of which each is more accurate than all that cost less, and what they were found from.

    Costs are multiples of that of the lowest precision throughout.
    """

    front: Sequence[Assignment]
    ladder: Ladder
    cheapest: float
    found: Structure
    levels: Sequence[Level]
    alone: Sequence[float]
    uniform: dict[str, float]
    source: str

    def __str__(self) -> str:
        worst = self.sensitivity(1)
        named = f"; the most sensitive is {worst[0].nodes[0]}, {worst[0].sqnr_db:.1f} dB by itself" if worst else ""
        return f"auto: {len(self.found.groups)} groups of nodes, {len(self.front)} assignments on the curve{named}"

    def sensitivity(self, count: int) -> tuple[Sensitivity, ...]:
        """The groups that cost the most accuracy by themselves, worst first."""
        order = sorted(range(len(self.alone)), key=lambda index: -self.alone[index])[:count]
        return tuple(
            Sensitivity(self.found.groups[index].nodes, -10 * math.log10(max(self.alone[index], 1e-14)))
            for index in order
        )

    def below(self, start: Assignment, allowed: float) -> Assignment:
        """The cheapest assignment found with at most so much more noise than another."""
        found = self.ladder.descend(start, allowed)
        return replace(found, cost=found.cost / self.cheapest)

    def groups_of(self, chosen: Assignment) -> dict[str, int]:
        """How many groups have each precision."""
        counts = Counter(chosen.levels)
        return {level.name: counts[position] for position, level in enumerate(self.levels) if counts[position]}


def curve(begun: Prepared) -> Curve:
    """The curve of a model: the noise of every group by itself, measured once, and the steps that save it for least."""
    target, quant = begun.target, _quant(begun.config)
    assert target.costs is not None, f"{target.table} lists the precision auto, so it has costs"
    settled = pipeline.settle(begun.model, quant, begun.inputs)
    rows, held = sensitivity.held_out(begun.inputs.calibration)
    careful = quant.effort != "fast"
    model = settled.model
    if careful:
        model, _ = smooth(model, quantize.plan(model, target, quant), rows, by_nodes=not target.npu)
    found = groups.structure(model, target, quant, target.costs.levels, settled.ranges)
    noises = sensitivity.measure(model, found, rows, held, halves=target.halves, feedback=careful)
    shaped = model.clone()
    shapes.infer_shapes(shaped)
    ladder = Ladder(Prices(found, work(shaped, found), target.costs), noises)
    cheapest = ladder.uniform(0).cost
    front = [replace(a, cost=a.cost / cheapest) for a in ladder.front()]
    while len(front) > 1 and not _quantizes(begun, found, front[-1]):
        front.pop()
    uniform = {level.name: ladder.uniform(k).cost / cheapest for k, level in enumerate(target.costs.levels)}
    return Curve(front, ladder, cheapest, found, target.costs.levels, noises.alone(found), uniform, target.costs.source)


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one assignment on the CPU, and then compiled."""

    measured_db: float | None
    passed: bool
    missing_db: float | None
    compiled_db: float | None = None


@dataclass(slots=True)
class _Hunt:
    """The way along the curve to the cheapest assignment that meets the gates."""

    begun: Prepared
    curve: Curve
    log: Log
    tried: dict[Assignment, Trial] = field(default_factory=dict)
    _expected: list[execution.Outputs] = field(default_factory=list)
    _last: tuple[Assignment, Prepared, Log] | None = None

    def find(self) -> Assignment:
        """The cheapest assignment that meets the gates on the CPU; the most accurate one where none was found."""
        front = self.curve.front
        below, above, fails = -1, len(front), 0
        index = self._first()
        while above - below > 1 and len(self.tried) < MOST_TRIES:
            trial = self._try(front[index])
            below, above = (below, index) if trial.passed else (index, above)
            if trial.passed and trial.missing_db is not None and trial.missing_db > -ENOUGH_DB:
                break
            # Where more bits gain less than expected, the next try goes further and further.
            fails = 0 if trial.passed else fails + 1
            further = trial.missing_db if trial.missing_db is None else trial.missing_db * 2 ** max(fails - 1, 0)
            index = self._next(below, above, index, further)
        return front[-1] if above == len(front) else self._trimmed(front[above])

    def _trimmed(self, chosen: Assignment) -> Assignment:
        """An assignment that meets the gates with room to spare, made cheaper until little is left of it."""
        share = TRIMMED
        for _ in range(MOST_TRIMS):
            trial = self.tried[chosen]
            if trial.missing_db is None or trial.missing_db > -ENOUGH_DB or trial.measured_db is None:
                break
            # Noise adds up: what may be added is what the goal allows, less what was measured.
            measured = 10 ** (-trial.measured_db / 10)
            room = share * measured * (10 ** (-trial.missing_db / 10) - 1)
            cheaper = self.curve.below(chosen, room)
            if cheaper in self.tried or cheaper.cost >= chosen.cost:
                break
            if self._try(cheaper).passed:
                chosen = cheaper
            else:
                share /= 2
        return chosen

    def build(self, chosen: Assignment, folder: Path) -> tuple[Assignment, Build, Path]:
        """The first build from this assignment on that meets the gates, otherwise the best, and where it is."""
        builds: dict[Assignment, Build] = {}
        while True:
            place = folder / str(len(builds))
            built = builds[chosen] = self._build(chosen, place)
            if self.tried[chosen].passed:
                return chosen, built, place
            if chosen == self.curve.front[-1]:
                break
            chosen = self._step_up(chosen, len(builds))
        best = max(builds, key=lambda assignment: _surplus(builds[assignment].gates))
        return best, builds[best], folder / str(list(builds).index(best))

    def _build(self, chosen: Assignment, place: Path) -> Build:
        prepared, log = self._prepared(chosen)
        built = pipeline.build_prepared(prepared, place, log)
        gates = [gate for gate in built.gates if gate.name in GOALS]
        self.tried[chosen] = Trial(
            _least(built.accuracy, "quantized"),
            all(gate.passed for gate in gates),
            _missing_db(gates),
            _least(built.accuracy, "compiled"),
        )
        self.log.events.note(f"{self._name(chosen)}, built: " + "; ".join(gate.detail for gate in gates))
        return built

    def _first(self) -> int:
        front, goal = self.curve.front, self.begun.config.min_sqnr
        if goal is None:
            return (len(front) - 1) // 2
        return next((i for i, a in enumerate(front) if a.predicted_db >= goal), len(front) - 1)

    def _next(self, below: int, above: int, index: int, missing: float | None) -> int:
        """A point strictly between: where the goal should be met, or the middle where both ends or nothing is known."""
        inside = range(below + 1, above)
        between = below >= 0 and above < len(self.curve.front)
        if missing is None or between or not inside:
            return (below + above) // 2
        wanted = self.curve.front[index].predicted_db + missing
        return next((i for i in inside if self.curve.front[i].predicted_db >= wanted), inside[-1])

    def _step_up(self, chosen: Assignment, builds: int) -> Assignment:
        """What to build next: one that should make up for what is missing, and that costs more; in the end the last."""
        missing = self.tried[chosen].missing_db
        if builds >= MOST_BUILDS - 1 or missing is None:
            return self.curve.front[-1]
        wanted = chosen.predicted_db + missing + ENOUGH_DB
        dearer = [a for a in self.curve.front if a.cost > chosen.cost and self.tried.get(a, _UNTRIED).passed]
        return next((a for a in dearer if a.predicted_db >= wanted), self.curve.front[-1])

    def _try(self, chosen: Assignment) -> Trial:
        """What an assignment gives that is quantized and run on the CPU."""
        prepared, _ = self._prepared(chosen)
        rows = _Rows(prepared.inputs.test, None if prepared.labels is not None else ROWS)
        if not self._expected:
            self._expected = execution.run(prepared.source.path, rows)
        original = Runner("original", execution.PLAIN, lambda _: iter(self._expected))
        candidate = Runner("quantized", execution.PLAIN, partial(execution.stream, prepared.model))
        first, (found,) = measure(rows, original, [candidate], prepared.labels)
        checked = acceptance.check(prepared.config, found.accuracy, first.task + found.task)
        gates = [gate for gate in checked if gate.name in GOALS]
        passed = all(gate.passed for gate in gates)
        self.tried[chosen] = Trial(_least(found.accuracy, "quantized"), passed, _missing_db(gates))
        self.log.events.note(f"{self._name(chosen)}: " + "; ".join(gate.detail for gate in gates))
        return self.tried[chosen]

    def _prepared(self, chosen: Assignment) -> tuple[Prepared, Log]:
        """The model quantized as an assignment says; the last one is kept."""
        if self._last is None or self._last[0] != chosen:
            log = Log(Silence(), [*self.log.stages], [*self.log.warnings])
            config = settings(self.begun, self.curve.found, chosen)
            self._last = (chosen, pipeline.quantized(replace(self.begun, config=config), log), log)
        return self._last[1], self._last[2]

    def _name(self, chosen: Assignment) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.curve.groups_of(chosen).items())
        return f"auto: {counts} (cost {chosen.cost:.3f})"

    def record(self, chosen: Assignment) -> Search:
        """The search as the manifest has it."""
        front = self.curve.front
        step = max(1, math.ceil(len(front) / POINTS_KEPT))
        kept = sorted({*front[::step], front[-1], chosen, *self.tried}, key=lambda a: (a.cost, -a.noise))
        uniform = {name: round(cost, 6) for name, cost in self.curve.uniform.items()}
        named = self.curve.sensitivity(GROUPS_NAMED)
        return Search(tuple(map(self._point, kept)), kept.index(chosen), uniform, named, self.curve.source)

    def _point(self, found: Assignment) -> SearchPoint:
        trial = self.tried.get(found, _UNTRIED)
        return SearchPoint(
            cost=round(found.cost, 6),
            predicted_db=round(found.predicted_db, 4),
            groups=self.curve.groups_of(found),
            measured_db=trial.measured_db,
            compiled_db=trial.compiled_db,
            passed=trial.passed if found in self.tried else None,
        )


# As good as any other, before it is tried.
_UNTRIED = Trial(None, True, None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The first rows of a data set, or all."""

    source: Iterable[data.Feeds]
    most: int | None

    def __iter__(self) -> Iterator[data.Feeds]:
        return islice(iter(self.source), self.most)


def _quantizes(begun: Prepared, found: Structure, chosen: Assignment) -> bool:
    """Whether anything is left to quantize: float throughout is another precision, not a mix."""
    quant = _quant(settings(begun, found, chosen))
    try:
        quantize.plan(begun.model, begun.target, quant, quant.types)
    except TargetError:
        return False
    return True


def settings(begun: Prepared, found: Structure, chosen: Assignment) -> BuildConfig:
    """The settings of a build with an assignment: types of nodes and of weights, under what the user set."""
    assert begun.target.costs is not None, "assignments are of the levels in the target's costs"
    config, quant = begun.config, _quant(begun.config)
    known = {node.name for node in begun.model.graph}
    types: dict[str, str] = {}
    weights: dict[str, TensorOverride] = {}
    for group, position in zip(found.groups, chosen.levels, strict=True):
        level = begun.target.costs.levels[position]
        if level.activation != quant.activation_type:
            types |= {name: level.activation for name in group.nodes if name in known}
        if level.activation != FLOAT and level.weight != quant.weight_type:
            weights |= {name: TensorOverride.from_dict({"dtype": level.weight}) for name in group.weights}
    changed = QuantConfig.from_dict(
        quant.to_dict()
        | {"types": types, "overrides": {n: o.to_dict() for n, o in (weights | quant.overrides).items()}}
    )
    if config.quant is not None:
        return config.model_copy(update={"quant": changed})
    return config.model_copy(update={"compile": config.compile.model_copy(update={"quant": changed})})


def _quant(config: BuildConfig) -> QuantConfig:
    quant = config.quantization
    assert quant is not None, "the preset of auto quantizes"
    return quant


def _publish(chosen: Assignment, built: Build, where: Path, hunt: _Hunt, output: Path, *, overwrite: bool) -> Build:
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


def _least(rows: Sequence[Accuracy], form: Form) -> float | None:
    return min((row.sqnr_db for row in rows if row.form == form and row.sqnr_db is not None), default=None)


def _missing_db(gates: Sequence[Gate]) -> float | None:
    """How much SQNR is missing for all gates to hold, negative where there is more than enough; None if unknown."""
    missing = [_gap_db(gate) for gate in gates]
    known = [gap for gap in missing if gap is not None]
    unknown = [gate for gate, gap in zip(gates, missing, strict=True) if gap is None]
    if not known or any(not gate.passed for gate in unknown):
        return None
    return max(known)


def _gap_db(gate: Gate) -> float | None:
    if gate.value is None or gate.name == "max_accuracy_drop":
        return None
    if gate.name == "min_sqnr":
        return gate.limit - gate.value
    # Small noise takes half its share of the signal from the cosine.
    return float(10 * np.log10(max(1 - gate.value, 1e-12) / max(1 - gate.limit, 1e-12)))


def _surplus(gates: Sequence[Gate]) -> float:
    """How near a build came to its goals: greater is better."""
    gaps = [_gap_db(gate) for gate in gates if gate.name in GOALS and not gate.passed]
    lost = [gate.value or 0.0 for gate in gates if gate.name == "max_accuracy_drop" and not gate.passed]
    return -max([gap for gap in gaps if gap is not None] + lost, default=0.0)
