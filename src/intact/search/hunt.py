"""The way along the curve to the cheapest assignment that meets the gates: tried on the CPU, built, and verified."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from intact import acceptance, data, execution, pipeline, preparation
from intact.events import Log, Silence
from intact.preparation import Prepared
from intact.results import Accuracy, Build, Form, Gate, Search, SearchPoint
from intact.search import sensitivity
from intact.search.curve import Curve, settings
from intact.search.device import first_on_device
from intact.search.ladder import Assignment
from intact.verify.compare import Runner, measure

GOALS = ("min_sqnr", "min_cosine", "max_accuracy_drop")
# How many assignments are quantized and run on the CPU, and how many are built.
MOST_TRIES, MOST_BUILDS = 8, 5
ROWS = 64
# An assignment that exceeds its goal by no more than this is cheap enough.
ENOUGH_DB = 0.5
# How often one with more to spare is made cheaper, and the share of the room that is used at first.
MOST_TRIMS, TRIMMED = 3, 0.8
# Points of the curve that the manifest keeps, beside those that were tried.
POINTS_KEPT = 40


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one assignment on the CPU, and then compiled."""

    measured_db: float | None
    passed: bool
    missing_db: float | None
    compiled_db: float | None = None


# As good as any other, before it is tried.
_UNTRIED = Trial(None, True, None)


@dataclass(slots=True)
class Hunt:
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
        built = pipeline.build_prepared(prepared, place, log, finder=first_on_device)
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
            self._last = (chosen, preparation.quantized(replace(self.begun, config=config), log), log)
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
        named = self.curve.sensitivity(sensitivity.NAMED)
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


@dataclass(frozen=True, slots=True)
class _Rows:
    """The first rows of a data set, or all."""

    source: Iterable[data.Feeds]
    most: int | None

    def __iter__(self) -> Iterator[data.Feeds]:
        return islice(iter(self.source), self.most)


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
