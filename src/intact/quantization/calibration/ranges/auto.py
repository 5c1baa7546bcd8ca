"""Auto: for each tensor, the method whose range has the least quantization error."""

from __future__ import annotations

import numpy as np

from intact.quantization.calibration.ranges.error import mean_squared_error
from intact.quantization.calibration.ranges.minmax import MinMax
from intact.quantization.calibration.ranges.mse import MeanSquaredError
from intact.quantization.calibration.ranges.percentile import Percentile
from intact.quantization.calibration.ranges.tails import SCANTY, far_beyond, with_tails
from intact.quantization.calibration.sketch import Sketch
from intact.records import dataclass
from intact.results import PlannedGrid, Range

FINE = ("uint16", "int16")
# How many times less error a range must have than min–max: clipping costs more where errors add up over layers, and
# on values that calibration has not seen, than the error of one tensor shows.
WORTH_CLIPPING = 1.5
# How many times what was seen a 16-bit grid reaches for values that are known to be possible: six bits, at most.
FARTHEST = 64.0


@dataclass(frozen=True, slots=True)
class Auto:
    """Try min–max, percentile and MSE; keep the range with the least mean squared error for the tensor's type.

    Entropy is left out: by this measure it cannot beat the search that MSE makes. Where nothing is worth clipping, the
    range has room for the values that tails promise. A 16-bit grid has steps to spare: it covers more than was seen in
    any case, because a value beyond its end costs far more than slightly coarser steps, much more if it is a result of
    which few values were seen, and all that there can be where that is known: rows without speech say little of how
    high a probability goes.
    """

    def range_of(self, seen: Sketch, grid: PlannedGrid) -> Range:
        """Choose the method of least error, min–max with room where clipping gains little, and always for 16 bits."""
        farthest = FARTHEST * max(abs(seen.low), abs(seen.high))
        if grid.dtype in FINE and grid.bounds is not None:
            low, high = max(grid.bounds.low, -farthest), min(grid.bounds.high, farthest)
            return Range(min(seen.low, low), max(seen.high, high))
        if grid.dtype in FINE:
            room = 1.0 if grid.bounded else 1.0 + grid.headroom
            ends = [with_tails(seen, grid), Range(seen.low * room, seen.high * room)]
            if grid.is_result and seen.count < SCANTY and not grid.bounded:
                ends.append(far_beyond(seen))
            if grid.reach:
                ends.append(Range(-min(grid.reach, farthest), min(grid.reach, farthest)))
            return Range(min(end.low for end in ends), max(end.high for end in ends))
        methods = (MinMax(), Percentile(), MeanSquaredError())
        ranges = [method.range_of(seen, grid) for method in methods]
        errors = mean_squared_error(seen, ranges, grid)
        best = int(np.argmin(errors))
        return ranges[best] if errors[best] * WORTH_CLIPPING < errors[0] else with_tails(seen, grid)
