"""Entropy: the clipping threshold that loses the least information (Kullback–Leibler divergence)."""

from __future__ import annotations

import numpy as np

from intact.numbers.integer_types import limits
from intact.quantization.calibration.sketch import Sketch
from intact.records import dataclass
from intact.results import PlannedGrid, Range

_FLOOR = 1e-10


@dataclass(frozen=True, slots=True)
class Entropy:
    """Search thresholds t for the least KL(values clipped to ±t ‖ the same on the grid).

    The sketch is resampled to linear bins of |value|: on its own bins, which widen with the value, small values
    would count as certain and the search would misfire.
    """

    bins: int = 2048
    candidates: int = 32

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """The observed range, both ends cut at the threshold found."""
        reach = max(abs(seen.low), abs(seen.high))
        if reach < np.finfo(np.float32).tiny:  # nothing but zeros and denormals, which the sketch takes for zeros
            return Range(seen.low, seen.high)
        threshold = self._threshold(seen, grid, reach)
        return Range(max(seen.low, -threshold), min(seen.high, threshold))

    def _threshold(self, seen: Sketch, grid: PlannedGrid, reach: float) -> float:
        counts = self._linear(seen, reach)
        levels = self._levels(seen, grid)
        if levels >= self.bins:
            return reach  # the grid is finer than the bins: nothing is lost without clipping
        coarse = max(1, (self.bins - levels) // self.candidates)
        best = _least(counts, levels, np.union1d(np.arange(levels, self.bins + 1, coarse), [self.bins]))
        around = np.arange(max(levels, best - coarse), min(self.bins, best + coarse) + 1, max(1, coarse // 8))
        return float(_least(counts, levels, np.union1d(around, [best])) * reach / self.bins)

    def _levels(self, seen: Sketch, grid: PlannedGrid) -> int:
        """Steps of the grid on one side of zero: all of them for one-sided values."""
        qmin, qmax = limits(grid.dtype)
        one_sided = not grid.symmetric and (seen.low >= 0 or seen.high <= 0)
        return max(2, (qmax - qmin + 1) // (1 if one_sided else 2))

    def _linear(self, seen: Sketch, reach: float) -> np.ndarray:
        """Counts of |value| in equal bins; a sketch bin that spans several is shared out among them."""
        values, counts = seen.points()
        keep = values != 0.0  # exact zeros are on every grid: they say nothing about the threshold
        size, number = np.abs(values[keep]), counts[keep].astype(np.float64)
        half = np.maximum(size * 2.0**-8, reach * 1e-12)
        edges = np.linspace(0.0, reach, self.bins + 1)
        order = np.argsort(size, kind="stable")
        size, number, half = size[order], number[order], half[order]
        below = np.concatenate([[0.0], np.cumsum(number)])
        # The cumulative count is linear across each sketch bin.
        at = np.stack([size - half, size + half], axis=1).reshape(-1)
        total = np.stack([below[:-1], below[1:]], axis=1).reshape(-1)
        at = np.maximum.accumulate(at)
        return np.diff(np.interp(edges, at, total, left=0.0, right=below[-1]))


def _least(counts: np.ndarray, levels: int, ends: np.ndarray) -> int:
    """The end with the least divergence; of equal ones the greatest, which clips least."""
    divergences = _divergences(counts, levels, ends)
    return int(ends[len(ends) - 1 - int(np.argmin(divergences[::-1]))])


def _divergences(counts: np.ndarray, levels: int, ends: np.ndarray) -> np.ndarray:
    """KL(p ‖ q) for each end, where p is `counts` clipped at the end and q is p merged into `levels` steps.

    q is the mean of p over the occupied bins of a step, so that running sums say all about each step.
    """
    below, occupied = _running(counts), _running(counts > 0)
    own = _running(_times_log(counts))
    bounds = np.round(np.linspace(0, ends, levels + 1, axis=1)).astype(int)
    sums, sizes = np.diff(below[bounds]), np.diff(occupied[bounds])
    kept, total, last = below[ends], below[-1], counts[ends - 1]
    # Clipped mass may fall on an empty bin, of which q knows nothing: a small floor keeps that finite but dear.
    q = np.maximum(sums / np.maximum(sizes, 1) / np.where(kept > 0, kept, 1.0)[:, None], _FLOOR)
    q_at_end = np.where(last > 0, q[:, -1], _FLOOR)
    clipped = total - kept
    p_log_p = own[ends - 1] + _times_log(last + clipped)
    p_log_q = np.sum(sums * np.log(q), axis=1) + clipped * np.log(q_at_end)
    return np.where(kept > 0, (p_log_p - p_log_q) / total - np.log(total), np.inf)


def _running(values: np.ndarray) -> np.ndarray:
    """The sum of the first n values, for n from 0 on."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _times_log(values: np.ndarray) -> np.ndarray:
    return values * np.log(np.where(values > 0, values, 1.0))
