"""The ranges of the channels of a tensor, and the coarseness of its grid once they are scaled."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from intact.numbers.integer_types import limits
from intact.records import dataclass

# Channels and weights that are always zero get a scale all the same.
LEAST = 1e-5
HALVES = (0, 1)


@dataclass(slots=True)
class Channels:
    """Extremes and mean squares of the channels of one tensor: of what differs along `axes`.

    Extremes are kept for every other sample apart, so that scales found on one half are judged on the other.
    """

    axes: tuple[int, ...]
    dtype: str
    lows: list[np.ndarray] = field(default_factory=list)
    highs: list[np.ndarray] = field(default_factory=list)
    squares: np.ndarray = field(default_factory=lambda: np.zeros(()))
    count: int = 0
    samples: int = 0

    def add(self, x: np.ndarray) -> None:
        """Take in one sample; one with NaN or infinite values is left out."""
        kept = sorted(axis % x.ndim for axis in self.axes)
        others = tuple(axis for axis in range(x.ndim) if axis not in kept)
        low, high = x.min(axis=others).reshape(-1), x.max(axis=others).reshape(-1)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            return
        if self.samples < len(HALVES):
            self.lows.append(low)
            self.highs.append(high)
        half = self.samples % len(HALVES)
        np.minimum(self.lows[half], low, out=self.lows[half])
        np.maximum(self.highs[half], high, out=self.highs[half])
        every = list(range(x.ndim))
        self.squares = self.squares + np.einsum(x, every, x, every, kept).reshape(-1).astype(np.float64)
        self.count += x.size // low.size
        self.samples += 1

    def fresh(self) -> Channels:
        """The same channels, of which nothing is seen yet."""
        return Channels(self.axes, self.dtype)

    def join(self, later: Channels) -> None:
        """Take in the samples that another has seen, half by half."""
        for half in range(len(later.lows)):
            if half < len(self.lows):
                np.minimum(self.lows[half], later.lows[half], out=self.lows[half])
                np.maximum(self.highs[half], later.highs[half], out=self.highs[half])
            else:
                self.lows.append(later.lows[half])
                self.highs.append(later.highs[half])
        self.squares = self.squares + later.squares
        self.count += later.count
        self.samples += later.samples

    @property
    def was_seen(self) -> bool:
        """True if each half has a sample."""
        return self.samples >= len(HALVES)

    def reach(self, half: int | None = None) -> np.ndarray:
        """The largest absolute value of each channel, in one half or both, at least a little above zero."""
        chosen = HALVES if half is None else (half,)
        extremes = [np.maximum(-self.lows[index], self.highs[index]) for index in chosen]
        return np.asarray(np.maximum(np.max(extremes, axis=0), LEAST), np.float64)

    @property
    def power(self) -> np.ndarray:
        """The mean square of each channel."""
        return np.asarray(self.squares / max(self.count, 1))

    def noise(self, scales: np.ndarray, half: int) -> float:
        """The mean square that rounding adds to each element if each channel is divided by its scale."""
        low = min(float((self.lows[half] / scales).min()), 0.0)
        high = max(float((self.highs[half] / scales).max()), 0.0)
        qmin, qmax = limits(self.dtype)
        return ((high - low) / (qmax - qmin)) ** 2 / 12
