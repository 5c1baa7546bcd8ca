"""From one precision throughout to another: which groups to raise or to lower, by noise and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from intact.numbers.decibels import decibels
from intact.records import dataclass
from intact.search.mixed.cost import Prices
from intact.search.mixed.groups import FLOAT
from intact.search.mixed.sensitivity import Noises
from intact.targets.spec import Level

# Rows of a noise table by the type of activations: 8 bits, 16 bits, float. A higher one is finer.
_KIND = {"uint8": 0, "int8": 0, "uint16": 1, "int16": 1, "float": 2}
_OF_WEIGHT = {"int8": 0, "int16": 1, "float": 2}

Levels = tuple[int, ...]
Change = Mapping[int, int]


LEAST_NOISE = 1e-14
"""The share of the signal that float32 arithmetic itself makes noise."""


def predicted_db(noise: float) -> float:
    """The SQNR of noise that is a share of the signal, at most that of float32 arithmetic."""
    return -decibels(max(noise, LEAST_NOISE))


@dataclass(frozen=True, slots=True)
class Assignment:
    """A level for every group, what it costs, and the noise expected at the worst output, as a share of the signal.

    `precision` names what `--precision` would give throughout, where the assignment stands for that.
    """

    levels: Levels
    cost: float
    noise: float
    precision: str | None = None

    @property
    def predicted_db(self) -> float:
        """The SQNR expected, at most that of float32 arithmetic."""
        return predicted_db(self.noise)


@dataclass(frozen=True, slots=True)
class _Step:
    """New levels of some groups, what they add to the noise at each output and to the cost, and what that is worth."""

    worth: float
    change: Change
    noise: np.ndarray
    cost: float


_NO_STEP = _Step(0.0, {}, np.zeros(0), 0.0)


@dataclass(slots=True)
class Ladder:
    """All that is needed to compare assignments, and the steps from the cheapest up."""

    prices: Prices
    noises: Noises
    touching: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.touching = [[] for _ in self.prices.structure.groups]
        for index, tensor in enumerate(self.prices.structure.tensors):
            for group in _groups(tensor.writer, tensor.readers):
                self.touching[group].append(index)

    @property
    def rows(self) -> tuple[Level, ...]:
        return self.prices.costs.levels

    def assignment(self, levels: Sequence[int]) -> Assignment:
        """Cost and noise of an assignment."""
        tensors = range(len(self.prices.structure.tensors))
        noise = self._noise(range(len(levels)), tensors, levels)
        return Assignment(tuple(levels), self.prices.total(levels), float(noise.max(initial=0.0)))

    def uniform(self, level: int) -> Assignment:
        """Everything at one level, or at the next lower that a group has."""
        groups = self.prices.structure.groups
        return self.assignment([max((k for k in g.levels if k <= level), default=g.levels[0]) for g in groups])

    def front(self) -> list[Assignment]:
        """Assignments of which each is more accurate than all that cost less, cheapest first.

        They lie on the ways from the lowest precision throughout upwards, and from each other one downwards.
        """
        found = self._way(self.uniform(0), self._best_higher)
        for level in range(1, len(self.rows)):
            found += self._way(self.uniform(level), self._best_lower)
        # Sums that took different ways differ in their last digits: what remains is summed up again, in order.
        return _best([self.assignment(one.levels) for one in _best(found)])

    def descend(self, start: Assignment, allowed: float) -> Assignment:
        """The assignment that saves the most cost for at most so much more noise, at any output."""
        levels = list(start.levels)
        left = np.full(self.noises.outputs, allowed)
        for step in self._walk(levels, self._best_lower, lambda step: bool((step.noise <= left).all())):
            np.subtract(left, step.noise, out=left)
        return self.assignment(levels)

    def ascend(self, start: Assignment, most: float, enough: float) -> Assignment:
        """The assignment that saves the most noise for its cost, up to a cost; with little enough noise it ends."""
        levels = list(start.levels)
        noise = self._noise(range(len(levels)), range(len(self.prices.structure.tensors)), levels)
        left = np.array([most - start.cost])
        for step in self._walk(levels, self._best_higher, lambda step: step.cost <= left[0]):
            np.add(noise, step.noise, out=noise)
            np.subtract(left, step.cost, out=left)
            if float(noise.max(initial=0.0)) <= enough:
                break
        return self.assignment(levels)

    def _way(self, start: Assignment, best: Callable[[Sequence[int], list[int]], _Step]) -> list[Assignment]:
        """All assignments on the way from one, as long as a step is worth anything."""
        levels, cost = list(start.levels), start.cost
        noise = self._noise(range(len(levels)), range(len(self.prices.structure.tensors)), levels)
        found = [start]
        for step in self._walk(levels, best, lambda _: True):
            noise, cost = noise + step.noise, cost + step.cost
            found.append(Assignment(tuple(levels), cost, float(noise.max(initial=0.0))))
        return found

    def _walk(
        self,
        levels: list[int],
        best: Callable[[Sequence[int], list[int]], _Step],
        allowed: Callable[[_Step], bool],
    ) -> Iterator[_Step]:
        """Take the step of most worth, in place, as long as one is worth anything; only neighbours are judged again."""
        moves = self._moves()
        near = [self._near(move) for move in moves]
        worth = [best(move, levels) for move in moves]
        while True:
            index = max(range(len(moves)), key=lambda i: worth[i].worth, default=None)
            if index is None or worth[index].worth <= 0:
                return
            step = worth[index]
            if not allowed(step):
                worth[index] = _NO_STEP
                continue
            for group, level in step.change.items():
                levels[group] = level
            for other, around in enumerate(near):
                if not around.isdisjoint(step.change):
                    worth[other] = best(moves[other], levels)
            yield step

    def _moves(self) -> list[tuple[int, ...]]:
        """Single groups, and all that touch one tensor: its noise goes only when the last of them is raised."""
        singles = [(index,) for index in range(len(self.prices.structure.groups))]
        around = [_groups(tensor.writer, tensor.readers) for tensor in self.prices.structure.tensors]
        return [*singles, *dict.fromkeys(groups for groups in around if len(groups) > 1)]

    def _near(self, move: Iterable[int]) -> set[int]:
        tensors = {index for group in move for index in self.touching[group]}
        found = [self.prices.structure.tensors[index] for index in tensors]
        return {*move, *(group for tensor in found for group in _groups(tensor.writer, tensor.readers))}

    def _best_higher(self, move: Sequence[int], levels: list[int]) -> _Step:
        """The step up of these groups that saves the most noise for its cost."""
        best = _NO_STEP
        for level in range(len(self.rows)):
            noise, cost, change = self._change(move, levels, level, higher=True)
            saved = -float(noise.sum())
            worth = 0.0 if saved <= 0 else saved / cost if cost > 0 else math.inf
            best = max(best, _Step(worth, change, noise, cost), key=lambda step: step.worth)
        return best

    def _best_lower(self, move: Sequence[int], levels: list[int]) -> _Step:
        """The step down of these groups that saves the most cost for its noise."""
        best = _NO_STEP
        for level in range(len(self.rows)):
            noise, cost, change = self._change(move, levels, level, higher=False)
            added = float(noise.sum())
            worth = 0.0 if cost >= 0 else -cost / added if added > 0 else math.inf
            best = max(best, _Step(worth, change, noise, cost), key=lambda step: step.worth)
        return best

    def _change(
        self, move: Sequence[int], levels: list[int], level: int, *, higher: bool
    ) -> tuple[np.ndarray, float, Change]:
        """The noise and cost that bringing these groups to a level adds, those that can have it; nothing if none."""
        groups = self.prices.structure.groups
        able = [g for g in move if level in groups[g].levels and (levels[g] < level if higher else levels[g] > level)]
        change = dict.fromkeys(able, level)
        if not change or not self._stands(change, levels):
            return np.zeros(self.noises.outputs), 0.0, {}
        noise, cost = self._difference(change, levels)
        return noise, cost, change

    def _stands(self, change: Change, levels: Sequence[int]) -> bool:
        """True if, after a change, everything in float is where the target takes it in float."""
        after = {**dict(enumerate(levels)), **change}
        return all(self._takes(group, after) for group in self._near(change))

    def _takes(self, group: int, levels: Mapping[int, int]) -> bool:
        if self.rows[levels[group]].activation != FLOAT:
            return True
        joins = self.prices.structure.groups[group].joins
        tensors = [self.prices.structure.tensors[index] for index in self.touching[group]]
        sources = [t.writer for t in tensors if group in t.readers and t.writer is not None]
        readers = [reader for t in tensors if t.writer == group for reader in t.readers]
        behind, before = (
            any(self.rows[levels[other]].activation != FLOAT for other in others) for others in (sources, readers)
        )
        return (
            (joins.behind or not behind) and (joins.before or not before) and (joins.between or not (behind and before))
        )

    def _difference(self, change: Change, levels: list[int]) -> tuple[np.ndarray, float]:
        """The noise that a change adds at each output, and the cost."""
        tensors = sorted({index for group in change for index in self.touching[group]})
        after = list(levels)
        for group, level in change.items():
            after[group] = level
        noise = self._noise(change, tensors, after) - self._noise(change, tensors, levels)
        return noise, self._cost(change, tensors, after) - self._cost(change, tensors, levels)

    def _cost(self, groups: Iterable[int], tensors: Iterable[int], levels: Sequence[int]) -> float:
        of_groups = sum(self.prices.of_group(group, levels[group]) for group in groups)
        return of_groups + sum(self.prices.of_tensor(index, levels) for index in tensors)

    def _noise(self, groups: Iterable[int], tensors: Iterable[int], levels: Sequence[int]) -> np.ndarray:
        total = np.zeros(self.noises.outputs)
        for group in groups:
            if group in self.noises.weights:
                total += self.noises.weights[group][_OF_WEIGHT[self.rows[levels[group]].weight]]
        for index in tensors:
            tensor = self.prices.structure.tensors[index]
            written = 2 if tensor.writer is None else _KIND[self.rows[levels[tensor.writer]].activation]
            if tensor.rounded:
                total += self.noises.written[tensor.name][written]
            for group in tensor.readers:
                kind = _KIND[self.rows[levels[group]].activation]
                if kind < written:
                    total += self.noises.read[tensor.name, group][kind]
        return total


def _best(tried: Iterable[Assignment]) -> list[Assignment]:
    """Those that are more accurate than all that cost less, cheapest first."""
    best: list[Assignment] = []
    for found in sorted(tried, key=lambda a: (a.cost, a.noise)):
        if not best or found.noise < best[-1].noise:
            best.append(found)
    return best


def _groups(writer: int | None, readers: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*readers, *(() if writer is None else (writer,))}))
