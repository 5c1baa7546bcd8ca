"""Finds tensors of which inputs outside the calibration data are cut off by their grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from intact.model.activation_grids import ActivationGrid, grids_of
from intact.numbers.decibels import sqnr_db
from intact.records import dataclass

# Ranges cut off single outliers on purpose. Where that alone leaves a tensor less than this, it was not on purpose:
# 8 bits round to 30 dB and more.
LEAST_SQNR = 20.0


@dataclass(frozen=True, slots=True)
class Clipped:
    """A tensor that does not fit its grid: `value` is the worst, `low` to `high` is what the grid holds."""

    tensor: str
    value: float
    low: float
    high: float
    sqnr_db: float

    def __str__(self) -> str:
        return (
            f"{self.tensor} reaches {self.value:.4g}, its grid holds {self.low:.4g} to {self.high:.4g}, "
            f"and what is cut off leaves {self.sqnr_db:.1f} dB"
        )


@dataclass(slots=True)
class _Tally:
    """The observations of one tensor, and the share of them outside `low` to `high`."""

    low: float
    high: float
    signal: float = 0.0
    lost: float = 0.0
    worst: float = 0.0
    value: float = 0.0

    def add(self, values: np.ndarray) -> None:
        finite = values[np.isfinite(values)].astype(np.float64)
        outside = finite - np.clip(finite, self.low, self.high)
        self.signal += float(np.sum(finite * finite))
        self.lost += float(np.sum(outside * outside))
        if np.abs(outside).max(initial=0.0) > self.worst:
            index = int(np.abs(outside).argmax())
            self.worst, self.value = abs(float(outside[index])), float(finite[index])

    def sqnr_db(self) -> float:
        return sqnr_db(self.signal, self.lost)


def watched(model: ir.Model) -> dict[str, ActivationGrid]:
    """The grid of each activation of a quantized model that is held by one scale, by the name of the activation."""
    return {grid.tensor: grid for grid in grids_of(model) if grid.write.scale.size == 1}


def clipped(grids: Mapping[str, ActivationGrid], parts: Iterable[Mapping[str, np.ndarray]]) -> list[Clipped]:
    """The tensors that do not fit their grids on some rows, the worst first; a part has the values of some."""
    tallies = {name: _Tally(*grid.range()) for name, grid in grids.items()}
    for values in parts:
        for name in values.keys() & tallies.keys():
            tallies[name].add(values[name])
    found = [Clipped(name, seen.value, seen.low, seen.high, seen.sqnr_db()) for name, seen in tallies.items()]
    return sorted((one for one in found if one.sqnr_db < LEAST_SQNR), key=lambda one: one.sqnr_db)
