"""The quantization error that a range would cause, estimated from a sketch."""

from __future__ import annotations

import numpy as np

from intact.quantize.grid import LIMITS, encode
from intact.quantize.sketch import Sketch
from intact.results import Grid, Range


def mean_squared_error(seen: Sketch, ranges: list[Range], grid: Grid) -> np.ndarray:
    """For each range, the mean of (value − its grid value)² over everything seen.

    Inside the range a value is uniformly far from its step (step²/12); zero is on the grid exactly; outside, the
    error is the distance to the nearest end.
    """
    values, counts = seen.points()
    weights = counts / seen.count
    moving = values != 0.0
    errors = []
    for chosen in ranges:
        low, high, step = _ends(chosen, grid)
        beyond = np.maximum(low - values, values - high)
        squared = np.where(beyond > step / 2, beyond**2, step**2 / 12)
        errors.append(float(np.sum(weights[moving] * squared[moving])))
    return np.array(errors)


def _ends(chosen: Range, grid: Grid) -> tuple[float, float, float]:
    encoding = encode(chosen.low, chosen.high, grid.dtype, symmetric=grid.symmetric)
    qmin, qmax = LIMITS[grid.dtype]
    step, zero = float(encoding.scale), int(encoding.zero_point)
    return (qmin - zero) * step, (qmax - zero) * step, step
