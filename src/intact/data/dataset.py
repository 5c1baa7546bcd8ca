"""Rows that can be read again and again, one at a time, and the rule that holds some back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from intact.data.input_profile import Profile, Record, record
from intact.data.input_specs import Feeds, check_values
from intact.data.symptom import Symptom
from intact.records import dataclass

Kind = Literal["npz", "arrays", "callable", "images", "text", "synthetic"]

FEWEST_TO_SPLIT = 8
FEWEST_HELD_BACK = 4
MOST_HELD_BACK = 16


class Source(ABC):
    """A source of samples. It holds none: every `read` fetches them anew, one at a time."""

    kind: Kind
    rows: int
    where: str
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[Feeds]:
        """The samples from `start` up to `stop`."""

    def elsewhere(self) -> Source | None:
        """The same samples for a process in another folder; None where they are in the memory of this one."""
        return None

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """The figures of each of these samples, after a check of all its values."""
        for row, feed in enumerate(self.read(start, stop), start):
            check_values(feed, f"{self.where}, sample {row}")
            yield record(feed)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples `start` to `stop` of a source, in order; iterate as often as needed.

    `sha256` covers the content of exactly these samples, wherever they came from.
    """

    source: Source
    start: int
    stop: int
    sha256: str
    profile: Profile = field(repr=False, compare=False)

    @classmethod
    def checked(cls, source: Source, start: int, stop: int) -> Dataset:
        """These samples of `source`, after one pass over them that checks and digests every value."""
        profile = Profile.of(source.records(start, stop))
        return cls(source, start, stop, profile.sha256, profile)

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Feeds]:
        return self.source.read(self.start, self.stop)


@dataclass(frozen=True, slots=True)
class CalibrationAndTest:
    """Rows to measure ranges on, rows to verify the result on, and warnings about both."""

    calibration: Dataset
    test: Dataset
    warnings: tuple[str, ...] = ()
    symptoms: tuple[Symptom, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """The sentences of symptoms that make the accuracy of a build doubtful."""
        return tuple(symptom.message for symptom in self.symptoms if symptom.doubtful)


def held_back(rows: int) -> int:
    """The number of `rows` kept for verification: the last quarter, 4 to 16 of them, none of fewer than 8."""
    if rows < FEWEST_TO_SPLIT:
        return 0
    return min(MOST_HELD_BACK, max(FEWEST_HELD_BACK, rows // 4))


def split(source: Source, samples: int, test: Source | None = None) -> CalibrationAndTest:
    """Calibration is the first `samples` rows that are not held back; the test is `test`, else the held-back rows.

    The rule depends on the rows alone, so that the same flags mean the same rows in every command.
    """
    kept = 0 if test is not None else held_back(source.rows)
    calibration = Dataset.checked(source, 0, min(samples, source.rows - kept))
    if test is not None:
        return CalibrationAndTest(calibration, Dataset.checked(test, 0, test.rows), source.warnings + test.warnings)
    if kept:
        return CalibrationAndTest(
            calibration, Dataset.checked(source, source.rows - kept, source.rows), source.warnings
        )
    few = (
        f"{source.where}: {source.rows} rows are too few to hold any back, so verification uses the calibration "
        f"rows; give {FEWEST_TO_SPLIT} or more, or separate test data"
    )
    return CalibrationAndTest(calibration, calibration, (*source.warnings, few))
