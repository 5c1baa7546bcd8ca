"""The spread of a calibrated tensor: small enough to be written down, and enough to draw it against its grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intact.numbers.encoding import Encoding
from intact.quantization.calibration.sketch import Sketch
from intact.results import QuantPlan

BINS = 48


@dataclass(frozen=True, slots=True)
class Spread:
    """Extremes of a tensor, its values counted in equal bins between them, and the share that its grid cuts off.

    Where only the extremes were observed there are no counts.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    cut_off: float


def spreads(plan: QuantPlan, seen: Mapping[str, Sketch], encodings: Mapping[str, Encoding]) -> dict[str, Spread]:
    """The spread of every observed tensor that is put on one scale; of two grids the first counts."""
    found: dict[str, Spread] = {}
    for entry, encoding in encodings.items():
        tensor = plan.source(entry)
        sketch = seen.get(tensor)
        if sketch is not None and sketch.count and encoding.scale.size == 1 and tensor not in found:
            found[tensor] = spread_of(sketch, encoding)
            sketch.forget_tables()
    return found


def spread_of(seen: Sketch, encoding: Encoding) -> Spread:
    """The spread of a tensor against the grid that was chosen for it."""
    if not seen.histogram:
        return Spread(seen.low, seen.high, (), 0.0)
    edges = np.linspace(seen.low, seen.high, BINS + 1)[1:-1]
    # What lies within half a step of an end is rounded to it, and not cut off.
    (low, high), half = encoding.ends(), float(encoding.scale.max()) / 2
    below = seen.below(np.array([*edges, float(low.min()) - half, float(high.max()) + half]))
    sums = np.array([0, *below[:-2].tolist(), seen.count])
    counts = sums[1:] - sums[:-1]
    inside = float(below[-1] - below[-2])
    return Spread(seen.low, seen.high, tuple(np.rint(counts).astype(int).tolist()), max(0.0, 1 - inside / seen.count))
