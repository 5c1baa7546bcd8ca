"""MSE: the range whose grid has the least mean squared error."""

from __future__ import annotations

import numpy as np

from intact.quantization.calibration.ranges.error import mean_squared_error
from intact.quantization.calibration.sketch import Sketch
from intact.records import dataclass
from intact.results import PlannedGrid, Range


@dataclass(frozen=True, slots=True)
class MeanSquaredError:
    """Shrink each end of the observed range in turn while the mean squared error falls."""

    candidates: int = 64
    least: float = 0.05
    rounds: int = 3

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """Coordinate descent over both ends; a one-sided tensor or a symmetric grid has one number to search."""
        best = Range(seen.low, seen.high)
        shares = np.linspace(self.least, 1.0, self.candidates)
        if grid.symmetric:  # its ends move together
            reach = max(abs(seen.low), abs(seen.high))
            return self._best(seen, grid, [_cut(best, reach * share) for share in shares])
        if seen.low == 0:
            return self._best(seen, grid, [Range(best.low, seen.high * share) for share in shares])
        if seen.high == 0:
            return self._best(seen, grid, [Range(seen.low * share, best.high) for share in shares])
        for _ in range(self.rounds):
            before = best
            best = self._best(seen, grid, [Range(best.low, seen.high * share) for share in shares])
            best = self._best(seen, grid, [Range(seen.low * share, best.high) for share in shares])
            if best == before:
                break
        return best

    def _best(self, seen: Sketch, grid: PlannedGrid, ranges: list[Range]) -> Range:
        errors = mean_squared_error(seen, ranges, grid)
        # Of equal errors the widest range: it clips least of what calibration has not seen.
        return ranges[len(ranges) - 1 - int(np.argmin(errors[::-1]))]


def _cut(seen: Range, reach: float) -> Range:
    return Range(max(seen.low, -reach), min(seen.high, reach))
