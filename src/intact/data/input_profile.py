"""Figures of samples, taken in the pass that checks them: a digest of each, and the extremes of each input in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """The extremes of one input in one sample; `whole` says that all its values are whole numbers."""

    low: float
    high: float
    size: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One sample: its digest, and the span of each input."""

    digest: bytes
    spans: Mapping[str, Span]


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """The extremes of one input in every sample; `size` is the fewest elements that a sample of it has."""

    lows: np.ndarray
    highs: np.ndarray
    size: int
    whole: bool

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"

    @property
    def low(self) -> float:
        return float(self.lows.min())

    @property
    def high(self) -> float:
        return float(self.highs.max())

    @property
    def binary(self) -> bool:
        """True if there is nothing but 0 and 1."""
        return self.whole and self.low >= 0 and self.high <= 1

    @property
    def widths(self) -> np.ndarray:
        """Highest minus lowest value of each sample."""
        found: np.ndarray = self.highs - self.lows
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The figures of a set of samples: some dozens of bytes a sample, however large it is."""

    digests: tuple[bytes, ...]
    extents: Mapping[str, Extent]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Profile:
        """The figures of these samples, in order."""
        kept = tuple(records)
        names = kept[0].spans if kept else ()
        extents = {name: _extent([record.spans[name] for record in kept]) for name in names}
        return cls(tuple(record.digest for record in kept), extents)

    @property
    def sha256(self) -> str:
        """A digest of all the samples."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()


def record(feed: Mapping[str, np.ndarray]) -> Record:
    """The figures of one sample."""
    return Record(digest(feed), {name: _span(array) for name, array in feed.items()})


def digest(feed: Mapping[str, np.ndarray]) -> bytes:
    """SHA-256 of one sample: names, types, shapes and values, in the order of the names."""
    result = hashlib.sha256()
    for name in sorted(feed):
        array = np.ascontiguousarray(feed[name])
        result.update(f"{name}\0{array.dtype.name}\0{feed[name].shape}\0".encode())
        result.update(array.reshape(-1).view(np.uint8).data)
    return result.digest()


def _extent(spans: list[Span]) -> Extent:
    lows, highs = np.array([span.low for span in spans]), np.array([span.high for span in spans])
    return Extent(lows, highs, min(span.size for span in spans), all(span.whole for span in spans))


def _span(array: np.ndarray) -> Span:
    values = _ordered(array)
    if values.size == 0:
        return Span(0.0, 0.0, 0, whole=True)
    return Span(float(values.min()), float(values.max()), values.size, _is_whole(values.reshape(-1)))


def _is_whole(values: np.ndarray) -> bool:
    """True if all are whole numbers; the first few of other data show that they are not."""
    if values.dtype.kind != "f":
        return True
    return all(bool((part == np.rint(part)).all()) for part in (values[:256], values[256:]))


def _ordered(array: np.ndarray) -> np.ndarray:
    """The values in a type that has an order: the size of complex ones, float32 for types that numpy only stores."""
    if array.dtype.kind in "biuf":
        return array
    values: np.ndarray = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float32)
    return values
