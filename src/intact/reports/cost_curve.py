"""The curve of accuracy against cost that mixed precision was chosen from, as places in a drawing, in per cent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from intact.reports.figures import NO_SIGNAL_DB

Record = Mapping[str, Any]

_MOST_TICKS = 6
# Steps between ticks, times a power of ten.
_ROUND = (1, 2, 5, 10)
# The share of an axis that stays free beyond the outermost points.
_MARGIN = 0.06
_HEIGHTS = ("predicted_db", "measured_db", "compiled_db")


def curve(search: Record | None, goal: float | None) -> dict[str, Any] | None:
    """Places of the points, the goal and the ticks in the drawing; None where nothing was searched for."""
    if search is None:
        return None
    *others, (unit, whole) = search["uniform"].items()
    points = [_shown(point, whole) for point in search["points"]]
    chosen = points[search["chosen"]]
    tried = [point for point in points if point["measured_db"] is not None or point["compiled_db"] is not None]
    near = _near(points, [*tried, chosen])
    across = _Axis([point["cost"] for point in near])
    levels = [point[key] for point in near for key in _HEIGHTS if point[key] is not None]
    up = _Axis(levels if goal is None else [*levels, goal])
    return {
        "line": " ".join(f"{across.at(p['cost'])},{100 - up.at(p['predicted_db']):.1f}" for p in _front(near)),
        "measured": _dots(tried, "measured_db", across, up),
        "compiled": _dots(tried, "compiled_db", across, up),
        "chosen": (across.at(chosen["cost"]), up.at(_best_known(chosen))),
        "goal": None if goal is None else up.at(goal),
        "x_ticks": across.ticks(),
        "y_ticks": up.ticks(),
        "point": chosen,
        "db": _best_known(chosen),
        "unit": unit,
        "uniform": [(name, cost / whole) for name, cost in others],
        "rows": tried,
        "worst": search["worst"],
        "source": search["cost_source"],
    }


def _near(points: Sequence[dict[str, Any]], wanted: Sequence[Record]) -> list[dict[str, Any]]:
    """The points from one below the cheapest of `wanted` to one above the dearest, which the drawing has room for."""
    costs = [point["cost"] for point in wanted]
    below = max((point["cost"] for point in points if point["cost"] < min(costs)), default=min(costs))
    above = min((point["cost"] for point in points if point["cost"] > max(costs)), default=max(costs))
    return [point for point in points if below <= point["cost"] <= above and point["predicted_db"] is not None]


def _front(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points that are expected to be better than every cheaper one."""
    best = accumulate((point["predicted_db"] for point in points), max)
    return [point for point, most in zip(points, best, strict=True) if point["predicted_db"] == most]


def _shown(point: Record, whole: float) -> dict[str, Any]:
    """A point with its cost as a share, and no figures that stand for no signal at all: they would flatten the rest."""
    found = {key: point[key] for key in _HEIGHTS}
    share = {"cost": point["cost"] / whole}
    return dict(point) | share | {key: None if db is None or db < NO_SIGNAL_DB else db for key, db in found.items()}


def _best_known(point: Record) -> float:
    known = [point[key] for key in reversed(_HEIGHTS) if point[key] is not None]
    return float(known[0]) if known else 0.0


def _dots(points: Sequence[Record], key: str, across: _Axis, up: _Axis) -> list[tuple[float, float, str]]:
    shown = [point for point in points if point[key] is not None]
    return [(across.at(p["cost"]), up.at(p[key]), f"cost {p['cost']:.3f}, {p[key]:.2f} dB") for p in shown]


class _Axis:
    """A range of values, with a margin, laid over 0 to 100; a single value lies in the middle."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        if low == high:
            low, high = low - 0.5, high + 0.5
        margin = _MARGIN * (high - low)
        self._low, self._high = low - margin, high + margin

    def at(self, value: float) -> float:
        """The place of a value."""
        return round(100 * (value - self._low) / (self._high - self._low), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values at equal distances, each with its place."""
        least = (self._high - self._low) / _MOST_TICKS
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in _ROUND if factor * power >= least * (1 - 1e-9))
        decimals = max(0, -math.floor(math.log10(step)))
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [(self.at(step * number), f"{step * number:.{decimals}f}") for number in range(first, last + 1)]
