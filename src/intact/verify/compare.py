"""How far the outputs of one form of a model are from those of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from intact.errors import ModelError
from intact.results import Accuracy, Form

# Stands for an error without end: JSON has no infinity.
GREATEST = float(np.finfo(np.float32).max)


@dataclass(slots=True)
class Difference:
    """Sums over samples from which every figure is computed; it never holds more than one sample."""

    signal: float = 0.0
    noise: float = 0.0
    product: float = 0.0
    other: float = 0.0
    largest: float = 0.0
    absolute: float = 0.0
    elements: int = 0
    agreeing: int = 0
    decisions: int = 0

    def add(self, reference: np.ndarray, candidate: np.ndarray) -> None:
        """Take in one sample of one output."""
        if reference.shape != candidate.shape:
            raise ModelError("M150", f"an output has shape {candidate.shape}, the original's is {reference.shape}")
        a, b = reference.astype(np.float64), candidate.astype(np.float64)
        # Equal infinities, as masks have them, are no error; infinity or NaN against a number is the greatest one.
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.isfinite(a) & np.isfinite(b)
        if a.ndim == 2 and a.shape[1] > 1:
            self.agreeing += int(np.sum(a.argmax(axis=1) == b.argmax(axis=1)))
            self.decisions += a.shape[0]
        a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
        error = np.where(same | finite, np.abs(a - b), GREATEST)
        self.signal += float(np.sum(a * a))
        self.other += float(np.sum(b * b))
        self.product += float(np.sum(a * b))
        self.noise += float(np.sum(error * error))
        self.largest = max(self.largest, float(error.max(initial=0.0)))
        self.absolute += float(error.sum())
        self.elements += error.size

    @property
    def identical(self) -> bool:
        """Whether no element differed."""
        return self.noise == 0.0 and self.largest == 0.0

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in decibels; None for identical outputs."""
        if self.identical:
            return None
        if self.signal == 0.0:
            return -GREATEST
        return float(10 * np.log10(self.signal / self.noise))

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between both outputs, over all samples; None where either is all zero."""
        size = np.sqrt(self.signal * self.other)
        return float(self.product / size) if size > 0 and np.isfinite(size) else None


def compare(
    form: Form,
    runtime: str,
    reference: Iterable[Mapping[str, np.ndarray]],
    candidate: Iterable[Mapping[str, np.ndarray]],
) -> tuple[Accuracy, ...]:
    """One row for each output of `reference`, over all samples."""
    differences: dict[str, Difference] = {}
    for expected, found in zip(reference, candidate, strict=True):
        for name, value in expected.items():
            if name not in found:
                raise ModelError("M151", f"the {form} model has no output {name!r}", allowed=", ".join(found))
            differences.setdefault(name, Difference()).add(value, found[name])
    return tuple(_row(form, runtime, name, difference) for name, difference in differences.items())


def _row(form: Form, runtime: str, name: str, difference: Difference) -> Accuracy:
    decided = difference.decisions
    return Accuracy(
        form=form,
        runtime=runtime,
        output=name,
        sqnr_db=difference.sqnr_db,
        identical=difference.identical,
        cosine=difference.cosine,
        max_abs_error=difference.largest,
        mean_abs_error=difference.absolute / max(difference.elements, 1),
        top1_agreement=difference.agreeing / decided if decided else None,
    )
