"""Measure the distance between the outputs of two forms of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from intact.data import Feeds
from intact.data.labels import Labels
from intact.errors import ModelError
from intact.numbers.decibels import sqnr_db
from intact.records import dataclass
from intact.results import Accuracy, Form, TaskAccuracy
from intact.runtime import unpacking
from intact.verification.task import Tally

Outputs = Mapping[str, np.ndarray]

# Stands for an error without end: JSON has no infinity.
GREATEST = float(np.finfo(np.float32).max)
# The relative tolerance that an absolute one is found for.
RTOL = 0.01
_FEW = 5
# Rows of an output differ from each other if the differences have at least this share of the signal's energy: less is
# what float rounding leaves.
_MOVED = 1e-4


@dataclass(slots=True)
class Difference:
    """Sums over samples from which every figure is computed.

    It holds one sample, the first, and two numbers for each decision between classes.
    """

    signal: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    other: float = 0.0
    largest: float = 0.0
    absolute: float = 0.0
    elements: int = 0
    beyond: float = 0.0
    agreeing: int = 0
    among_five: int = 0
    decisions: int = 0
    classes: int = 0
    nonfinite: int = 0
    equal: int = 0
    is_discrete: bool = False
    _first: tuple[np.ndarray, np.ndarray] | None = None
    _moved: tuple[float, float] = (0.0, 0.0)
    _ranges: tuple[float, float, float, float] = (np.inf, -np.inf, np.inf, -np.inf)
    _margins: list[np.ndarray] = field(default_factory=list)
    _agreed: list[np.ndarray] = field(default_factory=list)

    def add(self, reference: np.ndarray, candidate: np.ndarray) -> None:
        """Take in one sample of one output."""
        reference, candidate = unpacking.numbered(reference, candidate)
        if reference.shape != candidate.shape:
            raise ModelError("M150", f"an output has shape {candidate.shape}, the original's is {reference.shape}")
        a, b = reference.astype(np.float64), candidate.astype(np.float64)
        # Equal infinities, as masks have them, are no error; infinity or NaN against a number is the greatest one.
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.isfinite(a) & np.isfinite(b)
        self.nonfinite += int(np.sum(np.isfinite(a) & ~finite))
        self.equal += int(np.sum(same))
        self.is_discrete = is_discrete(reference.dtype)
        self._decide(a, b)
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        self._follow(a, b)
        error = np.where(same | finite, np.abs(a - b), GREATEST)
        self.signal += float(np.sum(a * a))
        self.other += float(np.sum(b * b))
        self.product += float(np.sum(a * b))
        self.noise += float(np.sum(error * error))
        self.largest = max(self.largest, float(error.max(initial=0.0)))
        self.beyond = max(self.beyond, float((error - RTOL * np.abs(a)).max(initial=0.0)))
        self.absolute += float(error.sum())
        self.elements += error.size

    def _decide(self, a: np.ndarray, b: np.ndarray) -> None:
        """Count agreement where the output is scores of classes, a row for each decision."""
        if a.ndim != 2 or a.shape[1] < 2:
            return
        best = a.argmax(axis=1)
        agreed = best == b.argmax(axis=1)
        self.classes = a.shape[1]
        self.decisions += a.shape[0]
        self.agreeing += int(np.sum(agreed))
        two = np.partition(np.nan_to_num(a, nan=-GREATEST, posinf=GREATEST, neginf=-GREATEST), -2, axis=1)[:, -2:]
        self._margins.append(two[:, 1] - two[:, 0])
        self._agreed.append(agreed)
        # Stable: of equal scores the first counts, as it does for argmax. What is no number is no good score.
        ranked = np.argsort(np.where(np.isnan(b), np.inf, -b), axis=1, kind="stable")[:, :_FEW]
        self.among_five += int(np.sum(ranked == best[:, None]))

    def _follow(self, a: np.ndarray, b: np.ndarray) -> None:
        """Note how far both outputs reach, and how much they differ from those of the first sample."""
        if a.size:
            low, high, other_low, other_high = self._ranges
            ends = (min(low, a.min()), max(high, a.max()), min(other_low, b.min()), max(other_high, b.max()))
            self._ranges = (float(ends[0]), float(ends[1]), float(ends[2]), float(ends[3]))
        if self._first is None:
            self._first = (a, b)
            return
        if a.shape != self._first[0].shape:
            self._first, self._moved = (a, b), (np.inf, np.inf)  # sizes differ from row to row: so do the rows
            return
        moved = (float(np.sum((now - then) ** 2)) for now, then in zip((a, b), self._first, strict=True))
        self._moved = (self._moved[0] + next(moved), self._moved[1] + next(moved))

    @property
    def is_constant(self) -> bool:
        """True if every element has one value, while the reference has several."""
        low, high, other_low, other_high = self._ranges
        return other_low == other_high and low < high

    @property
    def is_unmoved(self) -> bool:
        """True if every sample gives the same output, while those of the reference differ."""
        moved, other_moved = self._moved
        return other_moved == 0.0 and moved > _MOVED * self.signal

    def clear_decisions(self) -> tuple[int, int]:
        """The decisions whose two best scores are further apart than the RMS error, and how many of them agree."""
        if not self._margins:
            return 0, 0
        clear = np.concatenate(self._margins) > np.sqrt(self.noise / max(self.elements, 1))
        return int(np.sum(clear)), int(np.sum(np.concatenate(self._agreed) & clear))

    @property
    def identical(self) -> bool:
        """True if no element differed."""
        return self.noise == 0.0 and self.largest == 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in decibels; None for identical outputs."""
        if self.identical:
            return None
        if self.signal == 0.0:
            return -GREATEST
        return sqnr_db(self.signal, self.noise)

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between both outputs, over all samples; None where either is all zero."""
        size = np.sqrt(self.signal * self.other)
        return float(self.product / size) if size > 0 and np.isfinite(size) else None


def is_discrete(dtype: np.dtype) -> bool:
    """True for classes, indices and decisions, of which a distance means nothing; small integers are grids."""
    return dtype == np.bool_ or (np.issubdtype(dtype, np.integer) and dtype.itemsize >= 4)


@dataclass(frozen=True, slots=True)
class Runner:
    """A form of a model and where it runs: `outputs` maps rows to what the model gives for each."""

    form: Form
    runtime: str
    outputs: Callable[[Iterable[Feeds]], Iterable[Outputs]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The findings about one form: a row for each output, and one for each output that has labels."""

    accuracy: tuple[Accuracy, ...] = ()
    task: tuple[TaskAccuracy, ...] = ()


@dataclass(slots=True)
class _Record:
    runner: Runner
    tally: Tally | None
    differences: dict[str, Difference] = field(default_factory=dict)

    def add(self, expected: Outputs, found: Outputs) -> None:
        for name, value in expected.items():
            if name not in found:
                form = self.runner.form
                raise ModelError("M151", f"the {form} model has no output {name!r}", allowed=", ".join(found))
            self.differences.setdefault(name, Difference()).add(value, found[name])
        if self.tally is not None:
            self.tally.add({name: found[name] for name in expected})

    def measured(self) -> Measured:
        form, runtime = self.runner.form, self.runner.runtime
        rows = tuple(_row(form, runtime, name, difference) for name, difference in self.differences.items())
        return Measured(rows, () if self.tally is None else self.tally.rows(form, runtime))


def measure(
    rows: Iterable[Feeds], reference: Runner, candidates: Sequence[Runner], labels: Labels | None = None
) -> tuple[Measured, tuple[Measured, ...]]:
    """The reference by its labels, and each candidate by them and against the reference, over the same rows.

    All run side by side and every row is read once, so that memory does not grow with the number of rows.
    """
    first = None if labels is None else Tally(labels)
    records = [_Record(runner, None if labels is None else Tally(labels)) for runner in candidates]
    runners = (reference, *candidates)
    streams = [runner.outputs(copy) for runner, copy in zip(runners, _copies(rows, len(runners)), strict=True)]
    for expected, *found in zip(*(map(unpacking.arrays, stream) for stream in streams), strict=True):
        if first is not None:
            first.add(expected)
        for record, outputs in zip(records, found, strict=True):
            record.add(expected, outputs)
    task = () if first is None else first.rows(reference.form, reference.runtime)
    return Measured((), task), tuple(record.measured() for record in records)


def _copies(rows: Iterable[Feeds], count: int) -> list[Iterator[Feeds]]:
    """As many readers of the same rows; a row goes when all have it (`itertools.tee` would keep dozens of them)."""
    source = iter(rows)
    waiting: list[deque[Feeds]] = [deque() for _ in range(count)]

    def read(own: deque[Feeds]) -> Iterator[Feeds]:
        while True:
            if not own:
                fresh = next(source, None)
                if fresh is None:
                    return
                for each in waiting:
                    each.append(fresh)
            yield own.popleft()

    return [read(own) for own in waiting]


def compare(
    form: Form, runtime: str, reference: Iterable[Outputs], candidate: Iterable[Outputs]
) -> tuple[Accuracy, ...]:
    """One row for each output of `reference`, over all samples."""
    pair = Runner("original", "", lambda _: reference), Runner(form, runtime, lambda _: candidate)
    _, (measured,) = measure((), pair[0], [pair[1]])
    return measured.accuracy


def _row(form: Form, runtime: str, name: str, difference: Difference) -> Accuracy:
    decided = difference.decisions
    clear, agreed = difference.clear_decisions()
    return Accuracy(
        form=form,
        runtime=runtime,
        output=name,
        sqnr_db=difference.sqnr_db,
        identical=difference.identical,
        cosine=difference.cosine,
        max_abs_error=difference.largest,
        mean_abs_error=difference.absolute / max(difference.elements, 1),
        top1_agreement=difference.agreeing / decided if decided else None,
        top5_agreement=difference.among_five / decided if difference.classes > _FEW else None,
        atol_beside_rtol=difference.beyond,
        clear_decisions=clear,
        clear_agreement=agreed / clear if clear else None,
        nonfinite=difference.nonfinite,
        constant=difference.is_constant,
        unmoved=difference.is_unmoved,
        silent=difference.signal == 0.0,
        elements=difference.elements,
        equal=difference.equal if difference.is_discrete else None,
    )
