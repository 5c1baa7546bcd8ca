"""Range methods: each picks, from a sketch, the range that a grid should cover. One file each."""

from __future__ import annotations

from typing import Protocol

from intact.quantization.calibration.ranges.auto import FINE, Auto
from intact.quantization.calibration.ranges.entropy import Entropy
from intact.quantization.calibration.ranges.minmax import MinMax
from intact.quantization.calibration.ranges.mse import MeanSquaredError
from intact.quantization.calibration.ranges.percentile import Percentile
from intact.quantization.calibration.ranges.tails import Unclipped
from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range


class RangeMethod(Protocol):
    """Chooses a range; it never sees the model."""

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """The range that `grid` should cover, given what was seen."""


METHODS: dict[str, RangeMethod] = {
    "minmax": MinMax(),
    "percentile": Percentile(),
    "entropy": Entropy(),
    "mse": MeanSquaredError(),
    "auto": Auto(),
}
# The ranges that `auto` tries on the layers that read a tensor: the first clips nothing.
_TRIED: dict[str, RangeMethod] = {"unclipped": Unclipped(), **{n: METHODS[n] for n in ("percentile", "entropy", "mse")}}


def range_of(seen: Sketch, grid: PlannedGrid) -> Range:
    """The range that the method of `grid` picks; the same question to the same sketch is answered from memory."""
    found = seen.remember(grid, lambda: (METHODS | _TRIED)[grid.method].range_of(seen, grid))
    return Range(found.low, found.high + grid.room_above * (found.high - found.low))


def worth_trying(grid: PlannedGrid) -> tuple[str, ...]:
    """The methods that a grid may be tried with: all of them under `auto`, otherwise the one that was chosen."""
    if grid.method != "auto":
        return (grid.method,)
    return ("auto",) if grid.dtype in FINE else tuple(_TRIED)
