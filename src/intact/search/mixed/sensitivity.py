"""The noise that each group of nodes adds to the outputs by itself, at each precision.

Every tensor, weight and reading of a tensor is rounded alone, in a run of the float model on a few rows, and the noise
that it makes at the outputs is measured. Rounding errors of different places are all but independent, so the noise of
any assignment is about the sum of its parts. The groups that have the most by that are run again, each as a whole, on
more and more rows. All rows are held out: ranges are observed on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact import scratch
from intact.data.dataset import Dataset
from intact.data.shared_rows import SharedRows, shared
from intact.events import Events
from intact.quantization.calibration.observe import observe
from intact.quantization.calibration.resolve import resolve
from intact.records import dataclass
from intact.runtime import cluster
from intact.search.mixed.groups import Structure
from intact.search.mixed.switchable_model import Feeds, SwitchableModel
from intact.search.mixed.switches import Switches, put_switches
from intact.search.mixed.unseen import Unseen, look
from intact.verification.compare import Difference

# Work for the parts, in runs of the whole model for each row that ranges are observed on; a run that starts in the
# middle is less than one. At least one row is run.
RUNS_A_ROW = 3.0
# No estimate takes more rows than this.
MOST_ROWS = 16
# So many groups are named as the worst. Before them four times and twice as many are run, on fewer rows.
NAMED = 10
_ROUNDS = (4, 2, 1)
# Noise as a share of that of 8 bits: 16 bits have steps 257 times as fine; the 11 bits of half precision, which small
# values have as well as large ones, are some 36 dB better.
SHARE_16, SHARE_HALF = 2.0**-16, 2.0**-12
# Rounding with feedback leaves about this share of the noise of weights.
FEEDBACK = 0.4


@dataclass(frozen=True, slots=True)
class Noises:
    """Noise at each output as a share of its signal, [kinds, outputs], for activations of 8 bits, 16 bits and float.

    `written` is for a tensor that its writer rounds, `read` for one that only a group rounds when it reads it, and
    `weights` for the weights of a group.
    """

    written: Mapping[str, np.ndarray]
    read: Mapping[tuple[str, int], np.ndarray]
    weights: Mapping[int, np.ndarray]
    outputs: int

    def summed(self, found: Structure) -> list[float]:
        """For each group the noise at the worst output if it alone is in the lowest precision, from its parts."""
        totals = [np.zeros(self.outputs) for _ in found.groups]
        for tensor in found.tensors:
            if tensor.writer is not None and tensor.name in self.written:
                totals[tensor.writer] += self.written[tensor.name][0]
            for group in tensor.readers:
                totals[group] += self.read[tensor.name, group][0]
        for group, noise in self.weights.items():
            totals[group] += noise[0]
        return [float(total.max(initial=0.0)) for total in totals]


@dataclass(frozen=True, slots=True)
class Alone:
    """The noise at the worst output, as a share of the signal, with one group alone in the lowest precision."""

    group: int
    noise: float


@dataclass(frozen=True, slots=True)
class Rounding:
    """Facts about the rounding to come: float is half precision, and weights are rounded with feedback.

    So many groups as are to be `named` as the worst are measured more closely.
    """

    halves: bool
    feedback: bool
    named: int = NAMED


def measure(
    model: ir.Model,
    found: Structure,
    rows: Dataset,
    held: Sequence[Feeds],
    rounding: Rounding,
    events: Events,
) -> tuple[Noises, list[Alone]]:
    """The noise of every tensor and weight, rounded alone, and of every group, the worst first."""
    seen = observe(model, found.plan, rows)
    resolved = resolve(model, found.plan, seen)
    unseen = look(model, found.plan, seen, resolved, held)
    switches = put_switches(model, found, resolved, unseen.sixteen, FEEDBACK if rounding.feedback else 1.0)
    runs = _Runs(switches.model, unseen, events)
    noises = _of_parts(runs, switches, RUNS_A_ROW * len(rows), halves=rounding.halves)
    return noises, _ranked(runs, switches, noises.summed(found), rounding.named)


Combination = tuple[str, ...]


@dataclass(slots=True)
class _Runs:
    """The effect of switches on the outputs, row by row; nothing is run twice."""

    model: SwitchableModel
    unseen: Unseen
    events: Events
    found: dict[tuple[Combination, int], np.ndarray] = field(default_factory=dict)

    def run(self, wanted: Mapping[Combination, Iterable[int]]) -> None:
        """Run these combinations of switches, each on its own rows."""
        jobs = [
            RowJob(index, tuple(new))
            for index in range(len(self.unseen.rows))
            if (new := [c for c, own in wanted.items() if index in own and (c, index) not in self.found])
        ]
        with self.events.stage("measure the noise of tensors", sum(len(job.combinations) for job in jobs)) as advance:
            for job, noises in zip(jobs, self._noises(jobs), strict=True):
                for combination, noise in zip(job.combinations, noises, strict=True):
                    self.found[combination, job.row] = noise
                    advance()

    def _noises(self, jobs: Sequence[RowJob]) -> Iterator[list[np.ndarray]]:
        """The noise of each combination of each job, here or on a cluster."""
        elsewhere = cluster.current()
        if elsewhere is None or len(jobs) < 2:
            yield from (_noises(self.model, self.unseen.rows[job.row], job.combinations) for job in jobs)
            return
        with scratch.folder("switches", inside=elsewhere.folder) as folder:
            self.model.save(folder)
            rows = shared(self.unseen.rows, folder)
            there = [ThereJob(folder, rows.part(job.row, job.row + 1), job.combinations) for job in jobs]
            yield from elsewhere.each(_noises_there, there)

    def share(self, combination: Combination, rows: Iterable[int], beyond: Sequence[int] = ()) -> np.ndarray:
        """Noise as a share of the signal: of `beyond` as it is, of all other rows as it is of those in `rows`."""
        usual = [row for row in rows if row not in beyond] or list(rows)
        signal = self.unseen.signal
        rate = sum(self.found[combination, row] for row in usual) / _positive(signal[usual].sum(0))
        far = sum((self.found[combination, row] for row in beyond), np.zeros_like(rate))
        rest = signal.sum(0) - signal[list(beyond)].sum(0)
        share: np.ndarray = (rate * rest + far) / _positive(signal.sum(0))
        return share


@dataclass(frozen=True, slots=True)
class RowJob:
    """Combinations of switches to run on one row."""

    row: int
    combinations: tuple[Combination, ...]


@dataclass(frozen=True, slots=True)
class ThereJob:
    """The same for a worker, with the folder that the model with its switches was saved into."""

    folder: Path
    row: SharedRows
    combinations: tuple[Combination, ...]


def _noises_there(job: ThereJob) -> list[np.ndarray]:
    (row,) = job.row
    return _noises(SwitchableModel.saved(job.folder), row, job.combinations)


def _noises(model: SwitchableModel, row: Feeds, combinations: Sequence[Combination]) -> list[np.ndarray]:
    """The noise at each output that each combination of switches makes on a row."""
    expected = model.run(row)
    pairs = (zip(expected, model.again(combination), strict=True) for combination in combinations)
    return [np.array([_noise(before, after) for before, after in outputs]) for outputs in pairs]


def _positive(signal: np.ndarray) -> np.ndarray:
    return np.where(signal > 0, signal, 1.0)


def _noise(reference: np.ndarray, candidate: np.ndarray) -> float:
    difference = Difference()
    difference.add(reference, candidate)
    return difference.noise


def _of_parts(runs: _Runs, switches: Switches, work: float, *, halves: bool) -> Noises:
    """The noise of each place by itself; rows that go beyond what was seen are run for the place where they do."""
    unseen = runs.unseen
    names = dict.fromkeys([*switches.eight.values(), *switches.weights.values()])
    effort = sum(switches.model.effort((name,)) for name in names)
    few = _spread(len(unseen.rows), min(MOST_ROWS, int(work / max(effort, 1.0))))
    beyond: dict[str, set[int]] = {name: set() for name in names}
    for (tensor, _), switch in switches.eight.items():
        beyond[switch].update(unseen.eight[tensor].rows if tensor in unseen.eight else ())
    cut_off = {switch: unseen.sixteen[place[0]].rows for place, switch in switches.sixteen.items()}
    runs.run({(switch,): {*few, *far} for switch, far in beyond.items()} | {(s,): own for s, own in cut_off.items()})
    shares = np.array([[1.0], [SHARE_16], [SHARE_HALF if halves else 0.0]])
    noise = {switch: shares * runs.share((switch,), few, sorted(far)) for switch, far in beyond.items()}
    kinds = {place: noise[switch].copy() for place, switch in switches.eight.items()}
    for place, switch in switches.sixteen.items():
        kinds[place][1] += sum(runs.found[(switch,), row] for row in cut_off[switch]) / _positive(unseen.signal.sum(0))
    return Noises(
        {name: rows for (name, group), rows in kinds.items() if group is None},
        {(name, group): rows for (name, group), rows in kinds.items() if group is not None},
        {group: noise[switch] for group, switch in switches.weights.items()},
        unseen.signal.shape[1],
    )


def _ranked(runs: _Runs, switches: Switches, estimates: Sequence[float], named: int) -> list[Alone]:
    """All groups, the worst first: of those that remain the better half goes each time, and the rows are doubled."""
    order = _worst_first(dict(enumerate(estimates)))
    rows = _spread(len(runs.unseen.rows), MOST_ROWS)
    for factor in _ROUNDS:
        left = [alone.group for alone in order[: factor * named]]
        few = rows[::factor]
        runs.run({switches.of_group(group): few for group in left})
        found = {group: float(runs.share(switches.of_group(group), few).max(initial=0.0)) for group in left}
        order = [*_worst_first(found), *order[factor * named :]]
    return order


def _worst_first(noise: Mapping[int, float]) -> list[Alone]:
    return sorted((Alone(group, found) for group, found in noise.items()), key=lambda alone: -alone.noise)


def _spread(count: int, most: int) -> list[int]:
    """Positions of up to `most` rows of `count`, at least one, as far from each other as can be."""
    return list(range(0, count, -(-count // max(1, most))))
