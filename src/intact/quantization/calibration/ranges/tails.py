"""Room for values that calibration has not seen: how far the tails of a tensor go on beyond its extremes.

Of n values that were seen, one more leaves their range on a side with a probability of about 1/n. If a tail falls off
by the factor e every β, it then lies 2β² beyond in the mean square, so that what is cut off costs 2β²/n a side. A
range that is wider by dβ cuts off e^d times less, and its steps are wider. The sum of both errors is least where

    d = log(12 · levels² · β / (n · width))

Tails of networks fall faster than that further out: one less is better on rows that were not seen. β is the mean
excess of the outermost values over the least of them. With many values, or few levels, there is nothing to gain; an
output of a few numbers, seen on a few dozen rows, gets room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intact.numbers.integer_types import limits
from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range

# The share of the values that the tail is judged by, and the least number of them.
TAIL_SHARE, LEAST_VALUES = 0.01, 8
FASTER_FALL = 1.0
# The room on each side is at most what was seen of both.
MOST_ROOM = 1.0
# Fewer values than this tell too little of where a tensor ends: not even how fast its tails fall.
SCANTY = 1024
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Unclipped:
    """Cover all that was seen, and what the tails promise beyond."""

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """From the least to the greatest value, with the room that unseen ones are worth."""
        return with_tails(seen, grid)


def with_tails(seen: Sketch, grid: PlannedGrid) -> Range:
    """The range from the least to the greatest value seen, with the room that unseen ones are worth."""
    if grid.bounded or not seen.histogram or seen.count < 2 * LEAST_VALUES:
        return Range(seen.low, seen.high)
    values, counts = seen.points()
    falls = np.array([_fall(-values[::-1], counts[::-1]), _fall(values, counts)])
    falls *= [seen.low < 0, seen.high > 0]  # a side where nothing was seen has no tail
    levels = float(np.subtract(*limits(grid.dtype)[::-1]))
    room = np.zeros(2)
    for _ in range(_ROUNDS):
        width = _width(seen, room, symmetric=grid.symmetric)
        gain = 12 * levels**2 * falls / (seen.count * width)
        room = falls * np.maximum(0.0, np.log(np.maximum(gain, 1.0)) - FASTER_FALL)
    low, high = np.minimum(room, MOST_ROOM * (seen.high - seen.low))
    return Range(seen.low - float(low), seen.high + float(high))


def far_beyond(seen: Sketch) -> Range:
    """The range of what was seen, with as much again on each side that has values: for grids with fine steps."""
    room = MOST_ROOM * (max(seen.high, 0.0) - min(seen.low, 0.0))
    return Range(seen.low - room if seen.low < 0 else seen.low, seen.high + room if seen.high > 0 else seen.high)


def _width(seen: Sketch, room: np.ndarray, *, symmetric: bool) -> float:
    low, high = max(0.0, -seen.low) + float(room[0]), max(0.0, seen.high) + float(room[1])
    return max(2 * max(low, high) if symmetric else low + high, float(np.finfo(np.float32).tiny))


def _fall(values: np.ndarray, counts: np.ndarray) -> float:
    """The mean excess of the greatest values over the least of them."""
    wanted = max(LEAST_VALUES, int(TAIL_SHARE * counts.sum()))
    behind = np.cumsum(counts[::-1])[::-1]
    first = int(np.flatnonzero(behind >= wanted)[-1])
    excess, weights = values[first:] - values[first], counts[first:].astype(np.float64)
    return float((excess * weights).sum() / weights.sum())
