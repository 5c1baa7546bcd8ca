"""The quantization error that a range would cause, estimated from a sketch."""

from __future__ import annotations

import numpy as np

from intact.numbers.encoding import encode
from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range


def mean_squared_error(seen: Sketch, ranges: list[Range], grid: PlannedGrid) -> np.ndarray:
    """For each range, the mean of (value − its grid value)² over everything seen."""
    return errors_between(seen, np.array([r.low for r in ranges]), np.array([r.high for r in ranges]), grid)


def errors_between(seen: Sketch, lows: np.ndarray, highs: np.ndarray, grid: PlannedGrid) -> np.ndarray:
    """The mean squared error for each pair of ends.

    Inside the range a value is uniformly far from its step (step²/12); zero is on the grid exactly; beyond half a
    step outside, the error is the distance to the nearest end. Values are sorted, so that running sums of their
    powers give the error of any range without a look at each value.
    """
    values, sums = seen.points()[0], seen.moments()
    low, high, step = _ends(lows, highs, grid)
    first = np.searchsorted(values, low - step / 2, side="left")
    last = np.searchsorted(values, high + step / 2, side="right")
    inside = (sums[0][last] - sums[0][first]) * step**2 / 12
    below = _distance(sums[:, first], low)
    above = _distance(sums[:, -1:] - sums[:, last], high)
    return np.asarray(inside + below + above)


def _distance(moments: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Σ w·(v − end)² from Σ w, Σ w·v and Σ w·v²; rounding may leave it a little below zero."""
    total: np.ndarray = moments[2] - 2 * end * moments[1] + end**2 * moments[0]
    return np.asarray(np.maximum(total, 0.0))


def _ends(lows: np.ndarray, highs: np.ndarray, grid: PlannedGrid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    encoding = encode(lows, highs, grid.dtype, symmetric=grid.symmetric, axis=0)
    return *encoding.ends(), encoding.scale.astype(np.float64)
