"""The way to the cheapest assignment that meets the gates: first one precision throughout, then mixes that cost less.

Precisions throughout are tried on the CPU, cheapest first, until one meets the gates; that is the most a mix may cost.
The curve below it is bisected on the CPU. What is found is compiled and verified; where it falls short, the loss of
compiling, and more each time, is added to what is asked of the next one. Nothing that is returned costs more than a
precision throughout that meets the gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from intact.records import dataclass
from intact.search.mixed.ladder import Assignment

# How many mixes are quantized and run on the CPU, and how many are built; precisions throughout come on top.
MOST_TRIES, MOST_BUILDS = 14, 5
# An assignment that exceeds its goal by no more than this is cheap enough.
ENOUGH_DB = 0.5
# How often one with more to spare is made cheaper, and the share of the room that is used at first.
MOST_TRIMS, TRIMMED = 3, 0.8


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one assignment: quantized and run on the CPU, or compiled as well.

    `missing_db` is how much SQNR it lacks, negative where there is more than enough, None where that is not known.
    Cost, groups and bytes are those of the model that was written.
    """

    measured_db: float | None
    passed: bool
    missing_db: float | None
    cost: float
    groups: Mapping[str, int]
    bytes: int
    compiled_db: float | None = None


class Workshop(Protocol):
    """The work that a hunt leaves to others."""

    def attempt(self, chosen: Assignment) -> Trial | None:
        """Quantize and run on the CPU; None where the target does not take that."""

    def build(self, chosen: Assignment) -> Trial | None:
        """Compile and verify; None where the target does not take that."""

    def below(self, start: Assignment, allowed: float) -> Assignment:
        """The cheapest assignment known with at most so much more noise than another."""


@dataclass(slots=True)
class Hunt:
    """A search among mixes on a curve, cheapest first, and precisions throughout, cheapest first.

    `goal` is the SQNR that is asked for, None where gates are about something else.
    """

    front: Sequence[Assignment]
    uniform: Sequence[Assignment]
    workshop: Workshop
    goal: float | None = None
    tried: dict[Assignment, Trial] = field(default_factory=dict)
    built: dict[Assignment, Trial] = field(default_factory=dict)
    _refused: set[Assignment] = field(default_factory=set)
    _not_taken: list[Assignment] = field(default_factory=list)
    """Those that the compiler did not take, which takes it as long as others."""
    _margin: float = 0.0
    """The dB that a mix needs on the CPU beyond its goal, because compiling costs some."""
    _gave_up: bool = False

    @property
    def most_steps(self) -> int:
        """The most tries and builds that a hunt takes."""
        return len(self.uniform) + MOST_TRIES + MOST_BUILDS

    def find(self) -> Assignment | None:
        """The cheapest assignment that meets the gates as built; None where none does, and the nearest is built."""
        while (chosen := self._candidate()) is not None:
            if self._build(chosen):
                return chosen
        return None

    def _candidate(self) -> Assignment | None:
        """Choose the assignment to build next; None where nothing is left."""
        ceiling = self._ceiling()
        mix = self._mix(ceiling) if _mixes([*self.built, *self._not_taken]) < MOST_BUILDS else None
        return mix or ceiling or self._nearest()

    def _ceiling(self) -> Assignment | None:
        """The cheapest precision throughout that meets the gates, as far as is known; of equal ones the smallest."""
        for uniform in self.uniform:
            best = self._best_uniform()
            if best is not None and (uniform.cost > self.tried[best].cost or uniform.levels == best.levels):
                continue
            self._try(uniform)
        return self._best_uniform()

    def _best_uniform(self) -> Assignment | None:
        good = [uniform for uniform in self.uniform if self._is_good(uniform)]
        return min(good, key=lambda a: (round(self.tried[a].cost, 6), self.tried[a].bytes), default=None)

    def _mix(self, ceiling: Assignment | None) -> Assignment | None:
        """The cheapest mix that meets the gates on the CPU and costs less than a precision throughout."""
        most = self.tried[ceiling].cost if ceiling is not None else float("inf")
        points = [point for point in self.front if point.cost < most and point not in self._refused]
        found = self._bisected(points)
        if found is None:
            return None
        found = self._trimmed(found)
        return found if self.tried[found].cost < most else None

    def _bisected(self, points: Sequence[Assignment]) -> Assignment | None:
        """The cheapest point that was found to meet the gates on the CPU."""
        below, above = self._known(points)
        index, fails = self._first(points, below), 0
        while above - below > 1 and self._tries_left():
            index = min(max(index, below + 1), above - 1)
            trial, good = self._try(points[index]), self._is_good(points[index])
            below, above = (below, index) if good else (index, above)
            missing = None if trial is None or trial.missing_db is None else trial.missing_db + self._margin
            if good and missing is not None and missing > -ENOUGH_DB:
                break
            # Where more bits gain less than expected, the next try goes further and further.
            fails = 0 if good else fails + 1
            further = missing if missing is None else missing * 2 ** max(fails - 1, 0)
            index = _next(points, below, above, index, further)
        return points[above] if above < len(points) else None

    def _known(self, points: Sequence[Assignment]) -> tuple[int, int]:
        """The dearest point that is known to fall short, and the cheapest above it that is known to do."""
        failed = [a.cost for a in self.built if a.precision is None and not self.built[a].passed]
        short = [
            index
            for index, point in enumerate(points)
            if point.cost <= max(failed, default=0.0) or (point in self.tried and not self._is_good(point))
        ]
        good = [index for index, point in enumerate(points) if self._is_good(point) and index not in short]
        above = min((i for i in good if i > max(short, default=-1)), default=len(points))
        return max((i for i in short if i < above), default=-1), above

    def _first(self, points: Sequence[Assignment], below: int) -> int:
        if self.goal is None:
            return (below + len(points)) // 2
        wanted = self.goal + self._margin
        return next((i for i, a in enumerate(points) if i > below and a.predicted_db >= wanted), len(points) - 1)

    def _trimmed(self, chosen: Assignment) -> Assignment:
        """An assignment that meets the gates with room to spare, made cheaper until little is left of it."""
        share = TRIMMED
        for _ in range(MOST_TRIMS):
            trial = self.tried[chosen]
            if trial.missing_db is None or trial.measured_db is None or not self._tries_left():
                break
            spare = -trial.missing_db - self._margin
            if spare < ENOUGH_DB:
                break
            # Noise adds up: what may be added is what the goal allows, less what was measured.
            room = share * 10 ** (-trial.measured_db / 10) * (10 ** (spare / 10) - 1)
            cheaper = self.workshop.below(chosen, room)
            if cheaper in self.tried or cheaper.cost >= chosen.cost:
                break
            self._try(cheaper)
            if self._is_good(cheaper):
                chosen = cheaper
            else:
                share /= 2
        return chosen

    def _nearest(self) -> Assignment | None:
        """The assignment that comes nearest to the gates, if it is not built already: no other should meet them."""
        if self._gave_up:
            return None
        self._gave_up = True
        self._try(self.front[-1])
        known = {a: trial.missing_db for a, trial in self.tried.items() if trial.missing_db is not None}
        best = min(known, key=lambda a: known[a]) if known else self.front[-1]
        return best if best in self.tried and best not in self.built else None

    def _tries_left(self) -> bool:
        return _mixes({*self.tried, *self._refused}) < MOST_TRIES

    def _is_good(self, chosen: Assignment) -> bool:
        """True if an assignment should meet the gates as built: it does on the CPU, and has what compiling may cost."""
        trial = self.tried.get(chosen)
        if trial is None or not trial.passed or chosen in self.built:
            return False
        return chosen.precision is not None or trial.missing_db is None or trial.missing_db + self._margin <= 0

    def _try(self, chosen: Assignment) -> Trial | None:
        if chosen in self._refused:
            return None
        if chosen not in self.tried:
            trial = self.workshop.attempt(chosen)
            if trial is None:
                self._refused.add(chosen)
                return None
            self.tried[chosen] = trial
        return self.tried[chosen]

    def _build(self, chosen: Assignment) -> bool:
        """Build an assignment; keep what compiling it has cost."""
        before = self.tried[chosen].missing_db
        trial = self.workshop.build(chosen)
        if trial is None:
            self._refused.add(chosen)
            self._not_taken.append(chosen)
            self.tried.pop(chosen)
            return False
        self.tried[chosen] = self.built[chosen] = trial
        if not trial.passed and before is not None and trial.missing_db is not None:
            # What compiling costs differs from mix to mix: each that falls short asks more of the next.
            further = ENOUGH_DB * 2 ** (len(self.built) - 1)
            self._margin = max(self._margin, trial.missing_db - before + further)
        return trial.passed


def _mixes(assignments: Iterable[Assignment]) -> int:
    return sum(assignment.precision is None for assignment in assignments)


def _next(points: Sequence[Assignment], below: int, above: int, index: int, missing: float | None) -> int:
    """A point strictly between: where the goal should be met, or the middle where both ends or nothing is known."""
    inside = range(below + 1, above)
    between = below >= 0 and above < len(points)
    if missing is None or between or not inside:
        return (below + above) // 2
    wanted = points[index].predicted_db + missing
    return next((i for i in inside if points[i].predicted_db >= wanted), inside[-1])
