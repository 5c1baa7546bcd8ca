"""The error of a quantized model layer by layer: what each adds by itself, and what has come together up to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.model.activation_grids import ActivationGrid
from intact.numbers.decibels import sqnr_db
from intact.records import dataclass
from intact.results import LayerError
from intact.verification.compare import GREATEST

Values = Mapping[str, np.ndarray]

# Rows that layers are compared on: a layer is much the same in all of them.
ROWS = 2
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(slots=True)
class ErrorTally:
    """The power of a tensor and of the error in it, over all rows."""

    signal: float = 0.0
    noise: float = 0.0
    rows: int = 0

    def add(self, right: np.ndarray, found: np.ndarray) -> None:
        """Take in one row; infinities, as masks have them, are left out of both."""
        right, found = np.ravel(right), np.ravel(found)
        signal, noise = _powers(right, found)
        if not (math.isfinite(signal) and math.isfinite(noise)):
            kept = np.isfinite(right) & np.isfinite(found)
            right, found = right[kept].astype(np.float64), found[kept].astype(np.float64)
            signal, noise = _powers(right, found)
        self.signal, self.noise, self.rows = self.signal + signal, self.noise + noise, self.rows + 1

    @property
    def sqnr_db(self) -> float | None:
        """The SQNR in dB; None where nothing differs, or nothing was compared."""
        return None if self.noise == 0 else max(sqnr_db(self.signal, self.noise), -GREATEST)


@dataclass(slots=True)
class GridErrors:
    """The errors of one grid: of its layer alone, and of the whole model up to it."""

    grid: ActivationGrid
    own: ErrorTally = field(default_factory=ErrorTally)
    accumulated: ErrorTally = field(default_factory=ErrorTally)


def compare_apart(errors: Sequence[GridErrors], right: Values, apart: Values) -> None:
    """Take in what the layers of a model make of the right tensors, each by itself; by the name of the grid."""
    for one in errors:
        name = one.grid.float_name
        if name in right and right[name].shape == apart[one.grid.quantize].shape:
            one.own.add(right[name], apart[one.grid.quantize])


def compared(
    errors: Sequence[GridErrors], right: Iterator[Values], parts: Iterable[tuple[int, Values]]
) -> Iterator[tuple[int, Values]]:
    """Parts of rows of the whole model as they are; for as long as there are right rows, the errors take them in."""
    by_tensor: dict[str, list[GridErrors]] = {}
    for one in errors:
        by_tensor.setdefault(one.grid.tensor, []).append(one)
    expected: dict[int, Values] = {}
    for number, values in parts:
        while len(expected) <= number:
            expected[len(expected)] = next(right, {})
        for name in values if expected[number] else ():
            for one in by_tensor.get(name, ()):
                base = expected[number].get(one.grid.float_name)
                if base is not None and base.shape == values[name].shape:
                    one.accumulated.add(base, one.grid.rounded(values[name]))
        if by_tensor.keys() <= values.keys():
            expected[number] = {}
        yield number, values


class Seen(Protocol):
    """A tensor as calibration saw it: extremes, counts in equal bins between them, and the share that is cut off."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def cut_off(self) -> float: ...


def records(errors: Iterable[GridErrors], model: ir.Model, seen: Mapping[str, Seen]) -> tuple[LayerError, ...]:
    """The errors as they are written down, in the order of the model; those that were not compared are left out."""
    values = query.values(model)
    return tuple(_record(one, values[one.grid.base], seen.get(one.grid.float_name)) for one in errors if one.own.rows)


def _record(error: GridErrors, base: ir.Value, seen: Seen | None) -> LayerError:
    producer, grid, (low, high) = base.producer(), error.grid, error.grid.range()
    found = LayerError(
        node=(producer.name or "") if producer is not None else "",
        op=producer.op_type if producer is not None else "input",
        tensor=grid.float_name if grid.tensor == grid.base else grid.tensor,
        quantizer=grid.quantize,
        dtype=grid.dtype,
        own_db=_rounded(error.own.sqnr_db),
        accumulated_db=_rounded(error.accumulated.sqnr_db),
        low=low,
        high=high,
    )
    if seen is None:
        return found
    return replace(found, seen_low=seen.low, seen_high=seen.high, cut_off=seen.cut_off, histogram=digits(seen.counts))


def _rounded(db: float | None) -> float | None:
    return None if db is None else round(db, 2)


def digits(counts: Sequence[int]) -> str:
    """A histogram in short: a character for each bin, in equal steps of the logarithm of its count."""
    most = math.log1p(max(counts, default=0))
    steps = len(_DIGITS) - 1
    return "".join(_DIGITS[max(1, round(steps * math.log1p(n) / most)) if n else 0] for n in counts)


def _powers(right: np.ndarray, found: np.ndarray) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        wrong = right - found
        return float(np.dot(right, right)), float(np.dot(wrong, wrong))
