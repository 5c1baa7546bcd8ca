"""Signal and noise: ratios of powers in decibels."""

from __future__ import annotations

import math
from typing import overload

import numpy as np


@overload
def decibels(ratio: float) -> float: ...
@overload
def decibels(ratio: np.ndarray) -> np.ndarray: ...
def decibels(ratio: float | np.ndarray) -> float | np.ndarray:
    """A ratio of two powers, greater than zero, in decibels."""
    return 10 * np.log10(ratio) if isinstance(ratio, np.ndarray) else 10 * math.log10(ratio)


def sqnr_db(signal: float, noise: float) -> float:
    """Signal to quantization noise, both as powers: infinite without noise, and never no number.

    Minus infinite where there is no signal, or where the noise is no finite number.
    """
    if noise == 0:
        return math.inf
    return decibels(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf


def sqnr_of(right: np.ndarray, found: np.ndarray) -> float:
    """The SQNR in dB of an array against the right one; minus infinite where the shapes differ."""
    if right.shape != found.shape:
        return -math.inf
    wanted = right.astype(np.float64)
    return sqnr_db(float(np.sum(wanted**2)), float(np.sum((found.astype(np.float64) - wanted) ** 2)))
