"""Percentile: cover the bulk, clip the tails."""

from __future__ import annotations

from dataclasses import dataclass

from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range


@dataclass(frozen=True, slots=True)
class Percentile:
    """Keep the central `keep` share of observed values; clip the rest."""

    keep: float = 0.9999

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """Between the two tails, each of which holds half of what is clipped."""
        tail = (1 - self.keep) / 2
        return Range(*seen.quantiles(tail, 1 - tail))
