"""The curve of accuracy against cost that mixed precision was chosen from, as places in a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intact.reports.figures import NO_SIGNAL_DB

Record = Mapping[str, Any]

WIDTH, HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 34
_TICKS = 5


def curve(search: Record | None, goal: float | None) -> dict[str, Any] | None:
    """Places of the points, the goal and the ticks in the drawing; None where nothing was searched for."""
    if search is None:
        return None
    points = [_shown(point) for point in search["points"]]
    chosen = points[search["chosen"]]
    heights = [db for point in points for db in (point["predicted_db"], point["measured_db"], point["compiled_db"])]
    levels = [db for db in (*heights, goal) if db is not None]
    across = _Axis([point["cost"] for point in points], _LEFT, WIDTH - _RIGHT)
    up = _Axis(levels, HEIGHT - _BOTTOM, _TOP)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "bottom": HEIGHT - _BOTTOM,
        "line": " ".join(f"{across.at(p['cost'])},{up.at(p['predicted_db'])}" for p in points),
        "measured": _dots(points, "measured_db", across, up),
        "compiled": _dots(points, "compiled_db", across, up),
        "chosen": (across.at(chosen["cost"]), up.at(_best_known(chosen))),
        "goal": None if goal is None else up.at(goal),
        "x_ticks": [(across.at(value), f"{value:.2f}") for value in across.ticks()],
        "y_ticks": [(up.at(value), f"{value:.0f}") for value in up.ticks()],
        "point": chosen,
        "uniform": sorted(search["uniform"].items(), key=lambda item: float(item[1])),
        "rows": [point for point in points if point["measured_db"] is not None or point["compiled_db"] is not None],
        "worst": search["worst"],
        "source": search["cost_source"],
    }


def _shown(point: Record) -> dict[str, Any]:
    """A point without figures that stand for no signal at all: they would flatten the rest."""
    found = {key: point[key] for key in ("predicted_db", "measured_db", "compiled_db")}
    return dict(point) | {key: None if db is None or db < NO_SIGNAL_DB else db for key, db in found.items()}


def _best_known(point: Record) -> float:
    known = [point[key] for key in ("compiled_db", "measured_db", "predicted_db") if point[key] is not None]
    return float(known[0])


def _dots(points: Sequence[Record], key: str, across: _Axis, up: _Axis) -> list[tuple[float, float]]:
    return [(across.at(point["cost"]), up.at(point[key])) for point in points if point[key] is not None]


class _Axis:
    """A range of values laid over a range of the drawing; a single value lies in the middle."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Values at equal distances, from end to end."""
        return [self.low + (self.high - self.low) * step / (_TICKS - 1) for step in range(_TICKS)]
