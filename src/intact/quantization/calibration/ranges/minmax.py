"""Min–max: cover everything that was seen."""

from __future__ import annotations

from intact.quantization.calibration.sketch import Sketch
from intact.records import dataclass
from intact.results import PlannedGrid, Range


@dataclass(frozen=True, slots=True)
class MinMax:
    """Cover every observed value."""

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """From the least to the greatest value."""
        return Range(seen.low, seen.high)
