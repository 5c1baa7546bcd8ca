"""Latency of several models at once, in turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from intact.records import dataclass

WARM_UP = 3
# Without a number of rounds: as many as fit into these seconds, within limits.
SECONDS = 10.0
FEWEST, MOST = 15, 300
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of an inference: percentiles, and the median as a multiple of the first model's.

    The multiple lies between `ratio_low` and `ratio_high` with 95 % confidence: so much it moves when rounds, whole as
    they are, are drawn again (a bootstrap).
    """

    p50: float
    p90: float
    p99: float
    ratio_to_first: float
    ratio_low: float
    ratio_high: float

    @property
    def is_slower(self) -> bool:
        """True if this is slower than the first, and not by noise."""
        return self.ratio_low > 1


def race(
    models: Sequence[Callable[[int], object]],
    rounds: int | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    advance: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Seconds of each model (columns) in each round (rows), after a warm-up.

    A model is called with the number of the round. Each round runs every model once and begins with the next one, so
    that none always follows the same other.
    """
    for number in range(WARM_UP):
        warm = [_seconds(model, number, clock) for model in models]
    wanted = rounds if rounds is not None else affordable(sum(warm))
    times = np.zeros((wanted, len(models)))
    for number in range(wanted):
        for place in range(len(models)):
            column = (number + place) % len(models)
            times[number, column] = _seconds(models[column], number, clock)
        advance()
    return times


def affordable(seconds_of_a_round: float) -> int:
    """The number of rounds to run when nobody says."""
    return int(min(max(SECONDS / max(seconds_of_a_round, 1e-9), FEWEST), MOST))


def latencies(times: np.ndarray) -> tuple[Latency, ...]:
    """The latency of each column, against the first."""
    found = []
    for column in times.T:
        low, high = _interval(column, times[:, 0])
        p50, p90, p99 = (float(value) for value in np.percentile(column, (50, 90, 99)))
        found.append(Latency(p50, p90, p99, p50 / float(np.median(times[:, 0])), low, high))
    return tuple(found)


def _interval(column: np.ndarray, first: np.ndarray) -> tuple[float, float]:
    """The range of the ratio of medians in 95 of 100 draws; draws are the same every time."""
    rounds = np.random.default_rng(0).integers(0, len(first), (DRAWS, len(first)))
    ratios = np.median(column[rounds], axis=1) / np.median(first[rounds], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(low), float(high)


def _seconds(model: Callable[[int], object], number: int, clock: Callable[[], float]) -> float:
    start = clock()
    model(number)
    return clock() - start
