"""Draws the pictures of the explanation pages from measured.json: `python docs/figures/draw.py`.

A test fails where a picture is not what this draws. The pictures have a ground of their own, so that they can be read
on light and dark pages alike.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INK, PALE, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, TEAL, AMBER, RED, VIOLET = "#2563eb", "#0d9488", "#d97706", "#dc2626", "#7c3aed"
WIDTH, LEFT, RIGHT, TOP = 720, 56, 24, 44


def main() -> None:
    """Write every picture."""
    for name, text in pictures().items():
        (HERE / name).write_text(text, encoding="utf-8")


def pictures() -> dict[str, str]:
    """The text of every picture, by file name."""
    measured = json.loads((HERE / "measured.json").read_text(encoding="utf-8"))
    return {
        "sketch.svg": sketch(measured["sketch"]),
        "exactness.svg": exactness(measured["exactness"]),
        "verdict.svg": verdict(measured["verdict"]),
        "mixed.svg": mixed(measured["mixed"]),
        "zero_points.svg": zero_points((ROOT / "bench/results/zero_points.txt").read_text(encoding="utf-8")),
    }


def sketch(data: Mapping[str, Any]) -> str:
    """A histogram on a logarithmic axis, and below it the range of each method as a bar."""
    counts, (low, high) = data["counts"], data["edges"]
    base, tall, start, end = 250, 190, 90, 560
    x = _scale(low, high, start, end)
    most = math.log10(1 + max(counts))
    step = (x(high) - x(low)) / len(counts)
    bars = [
        _rect(
            x(low) + n * step,
            base - tall * math.log10(1 + count) / most,
            step - 0.6,
            tall * math.log10(1 + count) / most,
            BLUE,
        )
        for n, count in enumerate(counts)
        if count
    ]
    rows = []
    for n, (name, found) in enumerate(data["ranges"].items()):
        y = base + 44 + 24 * n
        reach = x(min(found["high"], high))
        rows += [_text(start - 8, y + 4, name, anchor="end", size=12), _line(start, y, reach, y, TEAL, width=6)]
        rows += [_text(reach + 8, y + 4, f"up to {found['high']:.2f}: {found['sqnr_db']:.1f} dB", size=12, fill=INK)]
    words = f"{data['values']:,} values of one tensor in {data['bins']:,} counts (heights are logarithmic)"
    axis = [_line(start, base, end, base, PALE), *_ticks(x, _steps(low, high, 0.2), base, ".1f")]
    return _page(base + 44 + 24 * len(data["ranges"]), words, [*bars, *axis, *rows])


CLAIMS = {"exact": BLUE, "within one step": TEAL, "bounded": AMBER, "near": VIOLET}


def exactness(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each rule: how often it fired over all models, and the most that it moved an integer by."""
    rules: dict[str, list[Any]] = {}
    for row in rows:
        known = rules.setdefault(row["rule"], [row["exactness"], 0, 0.0])
        known[1] += row["count"]
        known[2] = max(known[2], row["moved"])
    order = sorted(rules.items(), key=lambda item: (list(CLAIMS).index(item[1][0]), -item[1][1]))
    start, x = 250, _scale(0, max(row[1] for row in rules.values()), 250, 520)
    parts = [
        _text(start, TOP + 6, "times it fired", size=12, fill=PALE),
        _text(560, TOP + 6, "moved by at most", size=12, fill=PALE),
    ]
    for n, (name, (claim, count, moved)) in enumerate(order):
        y = TOP + 26 + 24 * n
        parts += [
            _text(start - 10, y + 4, name, anchor="end", size=12),
            _rect(start, y - 7, x(count) - start, 14, CLAIMS[claim]),
        ]
        parts += [_text(x(count) + 6, y + 4, str(count), size=12, fill=INK)]
        parts += [_text(560, y + 4, "nothing" if moved == 0 else f"{moved:.3f} of a step", size=12, fill=INK)]
    bottom = TOP + 26 + 24 * len(order)
    used = [claim for claim in CLAIMS if any(row[0] == claim for row in rules.values())]
    parts += _legend(bottom + 12, [(claim, CLAIMS[claim]) for claim in used], start)
    return _page(bottom + 24, "Rules on three int8 models for the CPU, by claim", parts)


WORDS = {"good": TEAL, "passed": TEAL, "unverified": PALE, "suspect": AMBER, "failed": RED, "broken": RED}


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Builds as dots on an axis of decibels, with the limits of the verdict."""
    start = 270
    x = _scale(-5, 85, start, WIDTH - RIGHT)
    bottom = TOP + 22 + 26 * len(rows)
    zones = [(-5, 6, RED, "broken"), (6, 20, AMBER, "suspect"), (20, 85, TEAL, "good")]
    parts = [_rect(x(a), TOP, x(b) - x(a), bottom - TOP, colour, opacity=0.1) for a, b, colour, _ in zones]
    parts += [
        _text((x(a) + x(b)) / 2, TOP - 6, word, anchor="middle", size=12, fill=colour) for a, b, colour, word in zones
    ]
    for n, row in enumerate(sorted(rows, key=lambda row: -row["compiled_db"])):
        y = TOP + 22 + 26 * n
        scaled = "" if row["factor"] == 1 else f", data × {row['factor']:g}"
        parts += [_text(start - 12, y + 4, f"{row['model']} {row['precision']}{scaled}", anchor="end", size=12)]
        parts += [_line(start, y, WIDTH - RIGHT, y, GRID), _dot(x(row["compiled_db"]), y, WORDS[row["verdict"]])]
        parts += [
            _text(
                x(row["compiled_db"]) + 10, y + 4, f"{row['compiled_db']:.1f} dB, {row['verdict']}", size=12, fill=INK
            )
        ]
    parts += [
        *_ticks(x, (0, 20, 40, 60, 80), bottom, ".0f"),
        _text(WIDTH - RIGHT, bottom + 34, "SQNR on the simulator, dB", anchor="end", size=12),
    ]
    return _page(bottom + 34, "", parts)


def mixed(data: Mapping[str, Any]) -> str:
    """Mixes by cost and accuracy: predicted, measured on the simulator, and the one that was taken."""
    points, base = data["points"], 330
    x = _scale(0.95, max(point["cost"] for point in points) + 0.05, LEFT, WIDTH - RIGHT)
    y = _scale(35, 90, base, TOP + 6)
    parts = [_line(LEFT, y(level), WIDTH - RIGHT, y(level), GRID) for level in range(40, 91, 10)]
    parts += [
        _text(LEFT - 8, y(level) + 4, str(level), anchor="end", size=12, fill=PALE) for level in range(40, 91, 10)
    ]
    parts += [_line(LEFT, y(data["goal"]), WIDTH - RIGHT, y(data["goal"]), RED, dashed=True)]
    parts += [_text(WIDTH - RIGHT, y(data["goal"]) - 6, f"goal {data['goal']:g} dB", anchor="end", size=12, fill=RED)]
    for name in ("w8a16",):
        cost = data["uniform"][name]
        parts += [
            _line(x(cost), TOP + 6, x(cost), base, PALE, dashed=True),
            _text(x(cost) + 5, TOP + 16, f"all {name}", size=12, fill=PALE),
        ]
    parts += [_dot(x(point["cost"]), y(point["predicted_db"]), BLUE, size=3) for point in points]
    for n, point in enumerate(points):
        if point["compiled_db"] is not None:
            parts += [
                _line(x(point["cost"]), y(point["predicted_db"]), x(point["cost"]), y(point["compiled_db"]), PALE)
            ]
            parts += [_dot(x(point["cost"]), y(point["compiled_db"]), TEAL if n == data["chosen"] else AMBER, size=6)]
            parts += [
                _text(
                    x(point["cost"]) + 9,
                    y(point["compiled_db"]) + 4,
                    f"{point['compiled_db']:.1f} dB",
                    size=12,
                    fill=INK,
                )
            ]
    parts += [_line(LEFT, base, WIDTH - RIGHT, base, PALE), *_ticks(x, (1, 1.25, 1.5, 1.75, 2, 2.25), base, "g")]
    parts += [_text(WIDTH - RIGHT, base + 36, "cost (the cheapest mix is 1)", anchor="end", size=12)]
    parts += _legend(
        base + 62, [("predicted", BLUE), ("measured, below the goal", AMBER), ("measured and taken", TEAL)], LEFT
    )
    return _page(base + 66, "SQNR of mixes of topics_bert on Hexagon V73, dB", parts)


ROW = re.compile(r"(.+?)  +(u?int8 u?int8) +([\d.]+) +([\d.]+) +([\d.]+) .*holds$", re.MULTILINE)
LAYERS = ("depthwise 128 x 56 x 56, 3 x 3", "dense 64 x 56 x 56, 3 x 3")


def zero_points(results: str) -> str:
    """Milliseconds of layers with a zero point for each channel: as they were, rewritten, and with one for all."""
    rows = [(name, types, list(map(float, times))) for name, types, *times in ROW.findall(results) if name in LAYERS]
    start, x = 250, _scale(0, max(max(times) for *_, times in rows), 250, 640)
    forms = (("as it was", RED), ("rewritten", TEAL), ("one zero point for all", BLUE))
    parts: list[str] = []
    for n, (name, types, times) in enumerate(rows):
        y = TOP + 14 + 58 * n
        parts += [_text(start - 10, y + 12, name.replace(" x ", " × "), anchor="end", size=12)]
        parts += [_text(start - 10, y + 28, types.replace(" ", " × "), anchor="end", size=12, fill=PALE)]
        for place, (time, (_, colour)) in enumerate(zip(times, forms, strict=True)):
            parts += [_rect(start, y + 15 * place, x(time) - start, 12, colour)]
            parts += [_text(x(time) + 6, y + 15 * place + 10, f"{time:.2f} ms", size=11, fill=INK)]
    bottom = TOP + 14 + 58 * len(rows)
    return _page(
        bottom + 12,
        "Layers with a zero point for each channel, one thread",
        [*parts, *_legend(bottom + 12, forms, start)],
    )


def _scale(low: float, high: float, start: float, end: float) -> Any:
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _steps(low: float, high: float, step: float) -> list[float]:
    return [round(step * n, 6) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _page(bottom: float, title: str, parts: Iterable[str]) -> str:
    height = round(bottom + 18)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'font-family="system-ui, sans-serif">'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>'
    words = [_text(LEFT, 26, title, size=14)] if title else []
    return "\n".join([head, ground, *words, *parts, "</svg>"]) + "\n"


def _rect(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0) -> str:
    shade = "" if opacity == 1.0 else f' opacity="{opacity:g}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{shade}/>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width:g}"{dashes}/>'


def _dot(x: float, y: float, fill: str, size: float = 6) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" fill="{fill}"/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, fill: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">{escape(words)}</text>'
    )


def _ticks(x: Any, values: Iterable[float], base: float, form: str) -> list[str]:
    return [_text(x(value), base + 16, format(value, form), anchor="middle", size=12, fill=PALE) for value in values]


def _legend(y: float, entries: Sequence[tuple[str, str]], start: float) -> list[str]:
    parts: list[str] = []
    for words, colour in entries:
        parts += [_dot(start, y - 4, colour, size=5), _text(start + 10, y, words, size=12)]
        start += 34 + 6.6 * len(words)
    return parts


if __name__ == "__main__":
    main()
