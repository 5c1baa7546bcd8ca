"""The error that one layer adds by itself, and the limits of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import field
from typing import Literal

import numpy as np

from intact.model.activation_grids import ActivationGrid
from intact.numbers.decibels import decibels as to_db
from intact.numbers.decibels import sqnr_db
from intact.records import dataclass
from intact.verification.compare import GREATEST, Difference

Rows = list[np.ndarray]

# A layer that is this far off by itself has parted ways; what quantization costs a sound layer of 8 bits is less.
PARTED_DB = 20.0
# Below this a difference is followed, for it may be meant; above it the models agree.
AGREED_DB = 30.0
# A grid is to blame if it also loses this much more than its type has to.
LOST_DB = 12.0


@dataclass(frozen=True, slots=True)
class Layer:
    """The error that one layer of the candidate adds by itself; None stands for no error at all.

    `computed_db` is the SQNR of its result, fed with the reference's tensors; `grid_db` that of putting it on its
    grid, and `expected_db` what the type of the grid could hold. `own_db` is both together. `accumulated_db` is the
    SQNR of the tensor in the whole model. A layer is `meant` to differ where its difference is undone behind it.
    """

    node: str
    op: str
    tensor: str
    own_db: float | None
    computed_db: float | None
    grid_db: float | None
    expected_db: float | None
    grid_type: str | None
    grid_range: tuple[float, float] | None
    seen_range: tuple[float, float] | None
    accumulated_db: float | None
    cause: Literal["weights", "grid"] | None = None
    meant: bool = False


@dataclass(slots=True)
class Loss:
    """The cost of putting one tensor on one grid, over all rows."""

    grid: ActivationGrid
    difference: Difference = field(default_factory=Difference)
    low: float = math.inf
    high: float = -math.inf

    def add(self, value: np.ndarray) -> None:
        self.difference.add(value, self.grid.rounded(value))
        finite = value[np.isfinite(value)]
        self.low = min(self.low, float(finite.min(initial=0.0)))
        self.high = max(self.high, float(finite.max(initial=0.0)))

    @property
    def expected_db(self) -> float | None:
        """The SQNR of the narrowest grid of this type over the range of the tensor, if it is spread evenly."""
        step = (self.high - self.low) / self.grid.levels()
        noise = self.difference.elements * step * step / 12
        return sqnr_db(self.difference.signal, noise) if noise > 0 and self.difference.signal > 0 else None

    @property
    def too_much(self) -> bool:
        """True if it costs more than any sound grid of its type."""
        found, expected = self.difference.sqnr_db, self.expected_db
        if found is None or found >= PARTED_DB:
            return False
        return expected is None or expected - found > LOST_DB


def loss_of(grid: ActivationGrid, rows: Rows) -> Loss:
    """The cost of putting a tensor with these values on a grid."""
    result = Loss(grid)
    for value in rows:
        result.add(value)
    return result


def ranked(layers: Iterable[Layer]) -> list[Layer]:
    """Layers by the error that each adds by itself, the largest first; without those that add none."""
    noisy = [(layer.own_db, layer) for layer in layers if layer.own_db is not None and not layer.meant]
    return [layer for _, layer in sorted(noisy, key=lambda pair: pair[0])]


def first_parted(layers: Iterable[Layer]) -> Layer | None:
    """The first layer that parts ways, in the order of the model."""
    return next((layer for layer in layers if layer.cause is not None), None)


def difference_of(expected: Rows, found: Rows) -> Difference:
    """The difference over all rows; shapes that differ are the greatest one."""
    result = Difference()
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape:
            return Difference(signal=1.0, noise=GREATEST, largest=GREATEST)
        result.add(a, b)
    return result


def but_for_a_factor(expected: Rows, found: Rows) -> Difference:
    """The difference that is left where one factor, the same for all rows, is made up for."""
    if any(a.shape != b.shape or a.dtype.kind != "f" for a, b in zip(expected, found, strict=True)):
        return difference_of(expected, found)
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(expected, found, strict=True)]
    size = sum(float(np.sum(b * b)) for _, b in pairs)
    factor = sum(float(np.sum(a * b)) for a, b in pairs) / size if size > 0 else 1.0
    return difference_of(expected, [factor * b for _, b in pairs] if np.isfinite(factor) else found)


def agrees(difference: Difference, limit: float) -> bool:
    """True if a difference is no greater than the limit allows."""
    return decibels(difference) >= limit


def decibels(difference: Difference) -> float:
    """The SQNR, infinite where nothing differs."""
    return math.inf if difference.sqnr_db is None else difference.sqnr_db


def shown(difference: Difference | None) -> float | None:
    """The SQNR as it is reported: None where nothing differs, or nothing was compared."""
    return None if difference is None else difference.sqnr_db


def together(parts: Iterable[Difference]) -> float | None:
    """The SQNR of errors that add up, each against its own signal."""
    share = sum(10 ** (-max(decibels(part), -300.0) / 10) for part in parts)
    return -to_db(share) if share > 0 else None
