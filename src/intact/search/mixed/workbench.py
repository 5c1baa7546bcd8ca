"""Assignments made real: quantized and run on the CPU, or compiled and verified, and weighed as they were written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from intact import data
from intact.errors import TargetError
from intact.events import Log, Silence, nothing
from intact.numbers.decibels import decibels
from intact.pipeline import acceptance, execution, preparation, stages
from intact.pipeline.preparation import PreparedModel
from intact.pipeline.stages import BuildOptions
from intact.records import dataclass
from intact.results import Accuracy, Build, Form, Gate
from intact.search.debug.device import first_on_device
from intact.search.mending.foreseen import foresee
from intact.search.mending.mender import mend
from intact.search.mixed.curve import Curve, settings
from intact.search.mixed.hunt import Trial
from intact.search.mixed.ladder import Assignment
from intact.settings.contradictions import GOALS
from intact.verification.compare import Measured, Runner, measure

# Rows that a mix is tried on. One precision throughout is tried on all: what fails there fails as built.
ROWS = 64


@dataclass(slots=True)
class Workbench:
    """A model on its way from float to many builds, each in a folder of its own."""

    begun: PreparedModel
    curve: Curve
    log: Log
    folder: Path
    builds: dict[Assignment, tuple[Build, Path]] = field(default_factory=dict)
    errors: list[TargetError] = field(default_factory=list)
    advance: Callable[[], None] = nothing
    _expected: list[execution.Outputs] = field(default_factory=list)
    _last: tuple[Assignment, PreparedModel, Log] | None = None

    def attempt(self, chosen: Assignment) -> Trial | None:
        """Quantize as assigned and run on the CPU; None where the target does not take it."""
        try:
            prepared, _ = self._prepared(chosen)
        except TargetError as error:
            self._note(chosen, error)
            return None
        first, (found,) = self._measured(prepared, every=chosen.precision is not None)
        known = acceptance.Circumstances(target=prepared.target)
        checked = acceptance.check(prepared.config, found.accuracy, first.task + found.task, known=known)
        gates = [gate for gate in checked if gate.name in GOALS]
        trial = self._trial(prepared, gates, found.accuracy)
        self._tell(f"{_name(chosen, trial)}: " + "; ".join(gate.detail for gate in gates))
        return trial

    def build(self, chosen: Assignment) -> Trial | None:
        """Build as assigned; None where the target does not take it after all."""
        prepared, log = self._prepared(chosen)
        place = self.folder / str(len(self.builds) + len(self.errors))
        try:
            built = stages.complete(
                prepared, place, BuildOptions(finder=first_on_device, mender=mend, recaller=foresee), log
            )
        except TargetError as error:
            self._note(chosen, error)
            return None
        gates = [gate for gate in built.gates if gate.name in GOALS]
        self.builds[chosen] = (built, place)
        trial = self._trial(prepared, gates, built.accuracy)
        # Gates may hold of what the compiler has broken.
        trial = replace(trial, passed=trial.passed and built.verdict != "broken")
        self._tell(f"{_name(chosen, trial)}, built: " + "; ".join(gate.detail for gate in gates))
        return trial

    def below(self, start: Assignment, allowed: float) -> Assignment:
        """The cheapest assignment known with at most so much more noise than another."""
        return self.curve.below(start, allowed)

    def nearest(self) -> Assignment:
        """Of all that was built the one that came nearest to its goals."""
        if not self.builds:
            raise self.errors[-1]
        return max(self.builds, key=lambda assignment: _surplus(self.builds[assignment][0].gates))

    def _measured(self, prepared: PreparedModel, *, every: bool) -> tuple[Measured, tuple[Measured, ...]]:
        rows = _Rows(prepared.inputs.test, None if every or prepared.labels is not None else ROWS)
        original = prepared.source.as_given()
        if rows.most is not None:
            self._expected = self._expected or list(original.outputs(rows))
            original = Runner("original", execution.PLAIN, lambda _: iter(self._expected))
        candidate = Runner("quantized", execution.PLAIN, partial(execution.stream, prepared.model))
        return measure(rows, original, [candidate], prepared.labels)

    def _prepared(self, chosen: Assignment) -> tuple[PreparedModel, Log]:
        """The model quantized as an assignment says; the last one is kept."""
        if self._last is None or self._last[0] != chosen:
            log = Log(Silence(), [*self.log.stages], [*self.log.warnings])
            begun = replace(self.begun, config=settings(self.begun, self.curve.found, chosen))
            preparation.warn_of_chip(begun.config, begun.target, log)
            self._last = (chosen, preparation.quantize(begun, log), log)
        return self._last[1], self._last[2]

    def _trial(self, prepared: PreparedModel, gates: Sequence[Gate], accuracy: Sequence[Accuracy]) -> Trial:
        bill = self.curve.bill(prepared.model)
        return Trial(
            _least(accuracy, "quantized"),
            all(gate.passed for gate in gates),
            _missing_db(gates),
            bill.cost,
            bill.groups,
            bill.bytes,
            _least(accuracy, "compiled"),
        )

    def _tell(self, text: str) -> None:
        """Say what came of a try or a build: one step of the search."""
        self.log.events.note(text)
        self.advance()

    def _note(self, chosen: Assignment, error: TargetError) -> None:
        self.errors.append(error)
        what = chosen.precision or f"a mix of cost {chosen.cost:.3f}"
        self._tell(f"auto: {what} is not taken: {error.message}")


@dataclass(frozen=True, slots=True)
class _Rows:
    """The first rows of a data set, or all."""

    source: Iterable[data.Feeds]
    most: int | None

    def __iter__(self) -> Iterator[data.Feeds]:
        return islice(iter(self.source), self.most)


def _name(chosen: Assignment, trial: Trial) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in trial.groups.items())
    throughout = f"{chosen.precision} throughout: " if chosen.precision is not None else ""
    return f"auto: {throughout}{counts} (cost {trial.cost:.3f})"


def _least(rows: Sequence[Accuracy], form: Form) -> float | None:
    return min((row.sqnr_db for row in rows if row.form == form and row.sqnr_db is not None), default=None)


def _missing_db(gates: Sequence[Gate]) -> float | None:
    """The SQNR that is missing for all gates to hold, negative where there is more than enough; None if unknown."""
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
    return decibels(max(1 - gate.value, 1e-12) / max(1 - gate.limit, 1e-12))


def _surplus(gates: Sequence[Gate]) -> float:
    """The nearness of a build to its goals: greater is better."""
    gaps = [_gap_db(gate) for gate in gates if gate.name in GOALS and not gate.passed]
    lost = [gate.value or 0.0 for gate in gates if gate.name == "max_accuracy_drop" and not gate.passed]
    return -max([gap for gap in gaps if gap is not None] + lost, default=0.0)
