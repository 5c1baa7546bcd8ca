"""The curves of RESULTS.md: seconds and memory against the size of a model and against the number of samples.

Drawn with the lines and letters of docs/figures/draw.py; on a dark page the colours change.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.peers import figures
from bench.peers.store import Results, Run
from bench.peers.tools import TOOLS

ROOT = Path(__file__).resolve().parents[2]
Point = tuple[float, float]
PANEL, GAP, BASE = 250, 130, 300


def _pen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs/figures/draw.py")
    assert spec is not None and spec.loader is not None, "docs/figures/draw.py is part of this repository"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PEN = _pen()
SHADES = (PEN.TEAL, PEN.INK, PEN.BLUE, PEN.AMBER, PEN.RED, PEN.VIOLET, "#db2777", "#65a30d", "#0891b2", PEN.PALE)
DARK = {"#ffffff": "#0d1117", PEN.INK: "#e6edf3", PEN.GRID: "#30363d", PEN.PALE: "#9aa7b4"}


def pictures(results: Results) -> dict[str, str]:
    """The text of every picture that the results have points for, by file name."""
    found = {"peers_size.svg": by_size(results), "peers_samples.svg": by_samples(results)}
    return {name: text for name, text in found.items() if text}


def captions(results: Results) -> dict[str, str]:
    """The words of each picture, for those who do not see it."""
    words = {
        "peers_size.svg": "Seconds and peak memory against the number of parameters",
        "peers_samples.svg": "Seconds and peak memory against the number of samples",
    }
    return {name: words[name] for name in pictures(results)}


def by_size(results: Results) -> str:
    """Two panels over the parameters of the models."""
    order = sorted(results.models, key=lambda model: results.models[model]["parameters"])
    sizes = {model: results.models[model]["parameters"] for model in order}

    def points(tool: str, value: Callable[[Sequence[Run]], float | None]) -> list[Point]:
        known = [(sizes[model], value(figures.of_tables(results, model, tool))) for model in order]
        return [(x, y) for x, y in known if y is not None]

    return _two_panels(results, points, "parameters", "Against the size of the model")


def by_samples(results: Results) -> str:
    """Two panels over the samples of the largest model that was calibrated on several numbers of them."""
    counts: dict[str, set[int]] = {}
    for run in results.runs:
        counts.setdefault(run.model, set()).add(run.samples)
    several = [model for model, found in counts.items() if len(found) > 2 and model in results.models]
    if not several:
        return ""
    model = max(several, key=lambda name: results.models[name]["parameters"])

    def points(tool: str, value: Callable[[Sequence[Run]], float | None]) -> list[Point]:
        known = [(count, value(results.of(model, tool, count))) for count in sorted(counts[model])]
        return [(x, y) for x, y in known if y is not None]

    return _two_panels(results, points, "samples", f"Against the number of samples: {results.models[model]['title']}")


def _two_panels(results: Results, points: Callable[..., list[Point]], axis: str, title: str) -> str:
    """Seconds on the left and megabytes on the right, a line for each tool, both axes logarithmic."""

    def taken(runs: Sequence[Run]) -> float | None:
        found = figures.seconds(results, runs)
        return None if found is None else found.value

    def used(runs: Sequence[Run]) -> float | None:
        found = figures.megabytes(runs)
        return None if found is None else found.value

    tools = [tool.label for tool in figures.ran(results) if not tool.label.endswith("for qnn")]
    kind = "seconds" if figures.quiet(results) else "processor seconds"
    parts: list[str] = []
    seen: set[str] = set()
    for start, value, words in ((PEN.LEFT, taken, kind), (PEN.LEFT + PANEL + GAP - 40, used, "peak MB")):
        lines = {tool: points(tool, value) for tool in tools}
        drawn = {tool: line for tool, line in lines.items() if len(line) > 1}
        if not drawn:
            return ""
        seen |= drawn.keys()
        parts += _panel(start, drawn, axis, words)
    legend = [(tool, _shade(tool)) for tool in tools if tool in seen]
    rows = [legend[n : n + 5] for n in range(0, len(legend), 5)]
    for n, row in enumerate(rows):
        parts += PEN._legend(BASE + 62 + 20 * n, row, PEN.LEFT)
    return _for_dark_pages(PEN._page(BASE + 66 + 20 * (len(rows) - 1), title, parts))


def _panel(start: float, lines: dict[str, list[Point]], axis: str, words: str) -> list[str]:
    xs, ys = zip(*(point for line in lines.values() for point in line), strict=True)
    x, y = _logarithmic(xs, start, start + PANEL), _logarithmic(ys, BASE, PEN.TOP + 20)
    parts = [PEN._text(start, PEN.TOP + 6, words, size=12, fill=PEN.PALE)]
    for level in _levels(ys):
        parts += [PEN._line(start, y(level), start + PANEL, y(level), PEN.GRID)]
        parts += [PEN._text(start - 6, y(level) + 4, _short(level), anchor="end", size=11, fill=PEN.PALE)]
    for level in _levels(xs):
        parts += [PEN._text(x(level), BASE + 18, _short(level), anchor="middle", size=11, fill=PEN.PALE)]
    parts += [PEN._text(start + PANEL, BASE + 36, axis, anchor="end", size=12, fill=PEN.PALE)]
    for tool, line in lines.items():
        ends = [(x(a), y(b)) for a, b in sorted(line)]
        width = 2.5 if tool.startswith("intact") else 1.5
        for (ax, ay), (bx, by) in pairwise(ends):
            parts += [PEN._line(ax, ay, bx, by, _shade(tool), width=width)]
        parts += [PEN._dot(ax, ay, _shade(tool), size=3) for ax, ay in ends]
    return parts


def _shade(tool: str) -> str:
    order = [known.label for known in TOOLS if not known.label.endswith("for qnn")]
    return str(SHADES[order.index(tool) % len(SHADES)])


def _logarithmic(values: Sequence[float], start: float, end: float) -> Any:
    low, high = math.log10(min(values)), math.log10(max(values))
    scale = PEN._scale(low, high if high > low else low + 1, start, end)
    return lambda value: scale(math.log10(value))


def _levels(values: Sequence[float]) -> list[float]:
    """Round numbers within the values: 1, 2 and 5 of every power of ten, or the powers alone where those are many."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low < 3 else (1,)
    return [
        step * 10.0**power
        for power in range(low, high + 1)
        for step in steps
        if min(values) <= step * 10.0**power <= max(values)
    ]


def _short(value: float) -> str:
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _for_dark_pages(text: str) -> str:
    """The same picture with colours that change where the reader's page is dark."""
    rules = [f'[{kind}="{light}"]{{{kind}:{dark}}}' for light, dark in DARK.items() for kind in ("fill", "stroke")]
    style = "<style>@media (prefers-color-scheme: dark){" + "".join(rules) + "}</style>"
    head, rest = text.split("\n", 1)
    return f"{head}\n{style}\n{rest}"
