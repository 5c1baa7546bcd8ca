"""Entropy: the clipping threshold that loses the least information (Kullback–Leibler divergence)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intact.quantize.grid import LIMITS
from intact.quantize.sketch import Sketch
from intact.results import Grid, Range


@dataclass(frozen=True, slots=True)
class Entropy:
    """Search thresholds t for the least KL(values clipped to ±t ‖ the same on the grid).

    The sketch is resampled to linear bins of |value|: on its own bins, which widen with the value, small values
    would count as certain and the search would misfire.
    """

    bins: int = 2048
    candidates: int = 32

    def range_of(self, seen: Sketch, grid: Grid) -> Range:
        """The observed range, both ends cut at the threshold found."""
        reach = max(abs(seen.low), abs(seen.high))
        if reach < np.finfo(np.float32).tiny:  # nothing but zeros and denormals, which the sketch takes for zeros
            return Range(seen.low, seen.high)
        threshold = self._threshold(seen, grid, reach)
        return Range(max(seen.low, -threshold), min(seen.high, threshold))

    def _threshold(self, seen: Sketch, grid: Grid, reach: float) -> float:
        counts = self._linear(seen, reach)
        levels = self._levels(seen, grid)
        if levels >= self.bins:
            return reach  # the grid is finer than the bins: nothing is lost without clipping
        coarse = max(1, (self.bins - levels) // self.candidates)
        best = _least(counts, levels, np.union1d(np.arange(levels, self.bins + 1, coarse), [self.bins]))
        around = np.arange(max(levels, best - coarse), min(self.bins, best + coarse) + 1, max(1, coarse // 8))
        return float(_least(counts, levels, np.union1d(around, [best])) * reach / self.bins)

    def _levels(self, seen: Sketch, grid: Grid) -> int:
        """Steps of the grid on one side of zero: all of them for one-sided values."""
        qmin, qmax = LIMITS[grid.dtype]
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
    divergences = [_divergence(counts, int(end), levels) for end in ends]
    return int(ends[len(ends) - 1 - int(np.argmin(divergences[::-1]))])


def _divergence(counts: np.ndarray, end: int, levels: int) -> float:
    """KL(p ‖ q) where p is `counts` clipped at `end` and q is p merged into `levels` steps."""
    kept = counts[:end]
    p = kept.copy()
    p[-1] += counts[end:].sum()
    bounds = np.round(np.linspace(0, end, levels + 1)).astype(int)
    step = np.repeat(np.arange(levels), np.diff(bounds))
    occupied = kept > 0
    sums = np.bincount(step, weights=kept, minlength=levels)
    sizes = np.bincount(step, weights=occupied, minlength=levels)
    q = np.where(occupied, (sums / np.maximum(sizes, 1))[step], 0.0)
    total_p, total_q = p.sum(), q.sum()
    if total_p == 0 or total_q == 0:
        return np.inf
    p, q = p / total_p, q / total_q
    seen = p > 0
    # Clipped mass may fall on an empty bin, of which q knows nothing: a small floor keeps that finite but dear.
    return float(np.sum(p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-10))))
