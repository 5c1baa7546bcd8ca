"""MSE: the range whose grid has the least mean squared error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intact.quantization.calibration.ranges.error import errors_between
from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range


@dataclass(frozen=True, slots=True)
class MeanSquaredError:
    """Shrink each end of the observed range in turn while the mean squared error falls."""

    candidates: int = 64
    least: float = 0.05
    rounds: int = 3

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """Coordinate descent over both ends; a one-sided tensor or a symmetric grid has one number to search."""
        low, high = seen.low, seen.high
        shares = np.linspace(self.least, 1.0, self.candidates)
        if grid.symmetric:  # its ends move together
            reach = max(abs(low), abs(high)) * shares
            return _best(seen, grid, np.maximum(low, -reach), np.minimum(high, reach))
        if low == 0:
            return _best(seen, grid, np.full(shares.shape, low), high * shares)
        if high == 0:
            return _best(seen, grid, low * shares, np.full(shares.shape, high))
        best = Range(low, high)
        for _ in range(self.rounds):
            before = best
            best = _best(seen, grid, np.full(shares.shape, best.low), high * shares)
            best = _best(seen, grid, low * shares, np.full(shares.shape, best.high))
            if best == before:
                break
        return best


def _best(seen: Sketch, grid: PlannedGrid, lows: np.ndarray, highs: np.ndarray) -> Range:
    """Of these ranges, each wider than the one before, the one of least error."""
    errors = errors_between(seen, lows, highs, grid)
    # Of equal errors the widest range: it clips least of what calibration has not seen.
    chosen = errors.size - 1 - int(np.argmin(errors[::-1]))
    return Range(float(lows[chosen]), float(highs[chosen]))
