"""Tells apart what the time of quantizing went into."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal, get_args

Phase = Literal["planning", "smoothing", "calibration", "study", "rounding", "correction", "qdq_insertion"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Stopwatch:
    """Seconds of each phase. Every moment since the start belongs to the phase whose lap ends next."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._last = time.perf_counter()

    def lap(self, phase: Phase) -> None:
        """Add the time since the last lap to `phase`; a phase may have several laps."""
        now = time.perf_counter()
        self._seconds[phase] += now - self._last
        self._last = now

    @property
    def seconds(self) -> Mapping[Phase, float]:
        """Seconds by phase; 0 for one that was not come to."""
        return dict(self._seconds)
