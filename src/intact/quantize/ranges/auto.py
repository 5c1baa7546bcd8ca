"""Auto: for each tensor, the method whose range has the least quantization error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intact.quantize.ranges.error import mean_squared_error
from intact.quantize.ranges.minmax import MinMax
from intact.quantize.ranges.mse import MeanSquaredError
from intact.quantize.ranges.percentile import Percentile
from intact.quantize.sketch import Sketch
from intact.results import Grid, Range

FINE = ("uint16", "int16")
# How many times less error a range must have than min–max: clipping costs more where errors add up over layers, and
# on values that calibration has not seen, than the error of one tensor shows.
WORTH_CLIPPING = 1.5


@dataclass(frozen=True, slots=True)
class Auto:
    """Try min–max, percentile and MSE; keep the range with the least mean squared error for the tensor's type.

    Entropy is left out: by this measure it cannot beat the search that MSE makes. A 16-bit grid has steps to spare:
    what clipping would gain there is less than what it risks on values that calibration has not seen.
    """

    def range_of(self, seen: Sketch, grid: Grid) -> Range:
        """Of equal errors the first: min–max, which clips nothing and which 16-bit grids always get."""
        if grid.dtype in FINE:
            return MinMax().range_of(seen, grid)
        methods = (MinMax(), Percentile(), MeanSquaredError())
        ranges = [method.range_of(seen, grid) for method in methods]
        errors = mean_squared_error(seen, ranges, grid)
        best = int(np.argmin(errors))
        return ranges[best] if errors[best] * WORTH_CLIPPING < errors[0] else ranges[0]
