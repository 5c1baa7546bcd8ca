"""Sketches, the memory of a tensor: a histogram over the top 16 bits of its floats, and exact extremes.

Sign, exponent and 7 bits of mantissa make 65,536 bins whose width grows with the value. They need no range
beforehand, never grow, and merge by addition, so that neither the order of samples nor the way they are shared
out over processes changes the result. Only exponents that occur are stored. A sketch may count so many
elements of a large array as tell its distribution, each for as many as it stands for; extremes are those of all.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

T = TypeVar("T")

_CHUNK = 1 << 18  # elements at a time: the temporaries stay in the cache
# About so many elements of an array are counted, where it has more.
_COUNTED = 1 << 18
# To sort so few takes less time than to look at every bin.
_FEW = 1 << 12
_BINS = 1 << 16
_MANTISSAS = 128
_FIRST_BINS = np.arange(0, _BINS, _MANTISSAS)  # of each sign and exponent
_TOP_HALF = 1 if sys.byteorder == "little" else 0


@dataclass(slots=True)
class Sketch:
    """Counts by bin, extremes and non-finite values of everything that was added.

    Without `histogram` only the extremes are kept, which is all that min–max needs. One that is not `whole` counts a
    sample of large arrays.
    """

    histogram: bool = True
    low: float = np.inf
    high: float = -np.inf
    count: int = 0
    nonfinite: int = 0
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    whole: bool = True
    _known: dict[Hashable, object] = field(default_factory=dict, compare=False, repr=False)
    """Results that were worked out from the sketch as it is now."""

    def add(self, values: np.ndarray) -> None:
        """Take in every element of `values`; NaN and infinities are counted and left out of everything else."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        if flat.size == 0:
            return
        low, high = float(flat.min()), float(flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            finite = flat[np.isfinite(flat)]
            self.nonfinite += flat.size - finite.size
            self.add(finite)
            return
        self._known.clear()
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += flat.size
        if self.histogram:
            # Bins of negative values follow those of positive ones.
            self._count(flat, _BINS if low < 0 else _bins_up_to(high))

    def _count(self, flat: np.ndarray, bins: int) -> None:
        """Count values that fall into the first `bins`, but for a negative zero."""
        top = flat.view(np.uint16)[_TOP_HALF::2]
        step = 1 if self.whole else _step(top.size)
        codes = top[::step]
        rows, table = _table(codes, bins)
        for row, counts in zip(rows, table * step if step > 1 else table, strict=True):
            known = self.rows.get(row)
            if known is None:
                # A part of the table would keep all of it.
                self.rows[row] = counts.copy()
            else:
                known += counts
        # The last stands for those that are left, so that counts add up to the number of values.
        row, mantissa = divmod(int(codes[-1]), _MANTISSAS)
        self.rows[row][mantissa] -= step * codes.size - top.size

    def merge(self, other: Sketch) -> Sketch:
        """The sketch of everything that either has seen; it has a histogram if both have one."""
        both = self.histogram and other.histogram
        merged = Sketch(
            both,
            min(self.low, other.low),
            max(self.high, other.high),
            self.count + other.count,
            self.nonfinite + other.nonfinite,
            {row: counts.copy() for row, counts in self.rows.items()} if both else {},
            self.whole and other.whole,
        )
        for row, counts in other.rows.items() if both else ():
            merged.rows[row] = merged.rows[row] + counts if row in merged.rows else counts.copy()
        return merged

    def tells(self, other: Sketch) -> bool:
        """True if all that a sketch like the other tells can be told from this one."""
        return self.histogram >= other.histogram and self.whole >= other.whole

    def fresh(self) -> Sketch:
        """A sketch like this one that has seen nothing."""
        return Sketch(self.histogram, whole=self.whole)

    def join(self, later: Sketch) -> None:
        """Take in all that another has seen."""
        merged = self.merge(later)
        self.low, self.high, self.count = merged.low, merged.high, merged.count
        self.nonfinite, self.rows = merged.nonfinite, merged.rows
        self._known.clear()

    def remember(self, key: Hashable, work_out: Callable[[], T]) -> T:
        """Return the result of `work_out`, which is called once for each key as long as nothing is added."""
        if key not in self._known:
            self._known[key] = work_out()
        return cast(T, self._known[key])

    def forget_tables(self) -> None:
        """Drop the tables of the histogram, several times its size; ranges that were chosen with them stay."""
        for name in ("bins", "points", "moments"):
            self._known.pop(name, None)

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle of every occupied bin, ascending, and how many values fell into it."""
        return self.remember("points", self._points)

    def moments(self) -> np.ndarray:
        """Sums of the powers 0, 1 and 2 of the first n points, for n from 0 on, by their share; zeros are left out."""
        return self.remember("moments", self._moments)

    def quantile(self, share: float) -> float:
        """The value below which `share` of all values lie, interpolated within its bin; exact at 0 and 1."""
        return self.quantiles(share)[0]

    def quantiles(self, *shares: float) -> list[float]:
        """The quantile for each of these shares."""
        edges, ranks = self._steps()
        found = np.interp(shares, ranks / self.count, edges).tolist()
        outside = (self.low if share <= 0 else self.high if share >= 1 else None for share in shares)
        return [one if end is None else end for one, end in zip(found, outside, strict=True)]

    def below(self, values: np.ndarray) -> np.ndarray:
        """Count the observed values below each of these, interpolated within bins."""
        edges, ranks = self._steps()
        found = np.interp(values, edges, ranks)
        return np.where(values <= self.low, 0, np.where(values > self.high, self.count, found))

    def _bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both ends of every occupied bin, ascending and within what was seen, and how many values it holds."""
        return self.remember("bins", self._sorted_bins)

    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of every occupied bin in one row, and how many values lie below each of them."""
        lower, upper, counts = self._bins()
        edges, ranks = np.empty(2 * lower.size), np.zeros(2 * lower.size, np.int64)
        edges[::2], edges[1::2] = lower, upper
        np.cumsum(counts, out=ranks[1::2])
        ranks[2::2] = ranks[1:-1:2]
        return edges, ranks

    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        lower, upper, counts = self._bins()
        return (lower + upper) / 2, counts

    def _moments(self) -> np.ndarray:
        values, counts = self.points()
        sums = np.zeros((3, values.size + 1))
        weights = np.where(values != 0.0, counts / self.count, 0.0)
        for row, share in zip(sums, (weights, weights * values, weights * values**2), strict=True):
            np.cumsum(share, out=row[1:])
        return sums

    def _sorted_bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        assert self.histogram, "this sketch keeps extremes only"
        rows = sorted(self.rows)
        counts = np.concatenate([self.rows[row] for row in rows]) if rows else np.zeros(0, np.int64)
        occupied = np.flatnonzero(counts > 0)
        places, mantissas = occupied // _MANTISSAS, occupied % _MANTISSAS
        codes = np.array(rows, np.uint32)[places] * np.uint32(_MANTISSAS) + mantissas.astype(np.uint32)
        ends = _ends(codes).clip(self.low, self.high)
        order = np.argsort(ends[0] + ends[1], kind="stable")
        lower, upper = ends[:, order]
        return lower, upper, counts[occupied[order]]


def _table(codes: np.ndarray, bins: int) -> tuple[list[int], np.ndarray]:
    """The rows that values fall into, all in the first `bins` but for a negative zero, and the counts of each row."""
    if codes.size <= _FEW:
        owners = codes // _MANTISSAS
        # np.unique would load numpy.ma, which takes longer than all the counting of a small model.
        rows = np.flatnonzero(np.bincount(owners))
        places = np.searchsorted(rows, owners) * _MANTISSAS + codes % _MANTISSAS
        return rows.tolist(), np.bincount(places, minlength=rows.size * _MANTISSAS).reshape(-1, _MANTISSAS)
    chunks = [codes[start : start + _CHUNK] for start in range(0, codes.size, _CHUNK)]
    found = [np.bincount(chunk, minlength=bins) for chunk in chunks]
    if any(one.size > bins for one in found):
        return _table(codes, _BINS)
    counts = functools.reduce(np.add, found)
    rows = np.flatnonzero(np.add.reduceat(counts, _FIRST_BINS[: bins // _MANTISSAS]))
    return rows.tolist(), counts.reshape(-1, _MANTISSAS)[rows]


def _step(size: int) -> int:
    """The distance between elements that are counted: no divisor of any axis, so that every channel has its share."""
    step = max(1, round(size / _COUNTED))
    while math.gcd(step, size) > 1:
        step += 1
    return step


def _bins_up_to(value: float) -> int:
    """The number of bins up to that of a value which is not negative, with all others of its exponent."""
    return (int(np.float32(value).view(np.uint32)) >> 16 | (_MANTISSAS - 1)) + 1


def _ends(codes: np.ndarray) -> np.ndarray:
    """The lower and upper end of each bin; the two that hold zero and the smallest denormals are zero itself."""
    bits = np.empty((2, codes.size), np.uint32)
    np.left_shift(codes, 16, out=bits[0])
    np.bitwise_or(bits[0], 0xFFFF, out=bits[1])
    inner, outer = np.where((codes & 0x7FFF) == 0, 0.0, bits.view(np.float32).astype(np.float64))
    return np.array([np.minimum(inner, outer), np.maximum(inner, outer)])
