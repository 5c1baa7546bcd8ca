"""Values beyond every one that was seen: what rows that ranges were not observed on have, and the others had not.

A grid cuts such values off, which costs more than rounding, on few rows, and mostly whatever the number of bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
import onnx_ir as ir

from intact.data.dataset import Dataset
from intact.numbers.encoding import Encoding
from intact.quantization.calibration.observe import watch
from intact.quantization.calibration.resolve import Resolved, resolve
from intact.quantization.calibration.sketch import Sketch
from intact.records import dataclass
from intact.results import QuantPlan
from intact.search.mixed.switchable_model import Feeds
from intact.verification.compare import Difference

# Of the rows a quarter is held out, but no more than so many.
SHARE_HELD, MOST_HELD = 4, 32
# Of the rows that go beyond what was seen, so many are looked at for a tensor: those that go the furthest.
FURTHEST = 2

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Beyond:
    """The rows on which a tensor has values that a grid cuts off by more than a step of 8 bits, the furthest first."""

    encoding: Encoding
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unseen:
    """Rows that ranges were not observed on, how large each output is on each, [rows, outputs], and what is beyond.

    `eight` and `sixteen` are, by tensor, what grids of 8 and of 16 bits cut off that nothing seen would have shown.
    """

    rows: Sequence[Feeds]
    signal: np.ndarray
    eight: Mapping[str, Beyond]
    sixteen: Mapping[str, Beyond]


def held_out(calibration: Dataset) -> tuple[Dataset, list[Feeds]]:
    """The rows to observe ranges on, and the others; all for both where there are too few to part them."""
    count = min(MOST_HELD, len(calibration) // SHARE_HELD)
    if count < 2:
        return calibration, list(calibration)
    source, start, stop = calibration.source, calibration.start, calibration.stop
    return Dataset.checked(source, start, stop - count), list(source.read(stop - count, stop))


def look(
    model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch], resolved: Resolved, rows: Sequence[Feeds]
) -> Unseen:
    """Run the float model over `rows` and compare what its tensors have with what was seen of them."""
    spans = {name: span for name, span in _seen_spans(plan, seen).items() if name in _computed(model)}
    extremes = {name: _Extremes() for name in spans}
    outputs = [value.name or "" for value in model.graph.outputs]
    sizes = [_Size() for _ in outputs]
    watchers: dict[str, list[_Extremes | _Size]] = {name: [one] for name, one in extremes.items()}
    for name, size in zip(outputs, sizes, strict=True):
        watchers.setdefault(name, []).append(size)
    watch(model, watchers, rows)
    finer = _finer(model, plan, seen)
    eight, sixteen = {}, {}
    for name, found in extremes.items():
        encoding = resolved.tensors[name]
        if furthest := found.furthest(spans[name], float(encoding.scale)):
            eight[name] = Beyond(encoding, furthest)
        if furthest := found.furthest(_span(finer[name]), float(encoding.scale)):
            sixteen[name] = Beyond(finer[name], furthest)
    return Unseen(rows, np.array([size.found for size in sizes]).T, eight, sixteen)


def _computed(model: ir.Model) -> set[str | None]:
    return {value.name for value in model.graph.inputs} | {v.name for node in model.graph for v in node.outputs}


def _seen_spans(plan: QuantPlan, seen: Mapping[str, Sketch]) -> dict[str, Span]:
    """The least and the greatest value that was seen, of all tensors that share a grid; at least zero is among them."""
    members: dict[str, list[Sketch]] = {}
    for entry in plan.observed:
        members.setdefault(plan.tensors[entry], []).append(seen[plan.source(entry)])
    spans = {
        grid: (min(0.0, *(s.low for s in found)), max(0.0, *(s.high for s in found))) for grid, found in members.items()
    }
    return {name: spans[grid] for name, grid in plan.tensors.items() if grid in spans}


def _finer(model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch]) -> Mapping[str, Encoding]:
    """The grids that the tensors of a plan would have with 16 bits."""
    grids = {
        name: grid if grid.fixed is not None else replace(grid, dtype="uint16") for name, grid in plan.grids.items()
    }
    return resolve(model, replace(plan, grids=grids, weights=(), biases=()), seen).tensors


def _span(encoding: Encoding) -> Span:
    low, high = encoding.ends()
    return float(low), float(high)


@dataclass(slots=True)
class _Extremes:
    """The least and the greatest value of each row."""

    found: list[Span] = field(default_factory=list)

    def add(self, values: np.ndarray) -> None:
        """Take in one row; without finite values it has no extremes."""
        finite = values[np.isfinite(values)]
        self.found.append((float(finite.min(initial=0.0)), float(finite.max(initial=0.0))))

    def fresh(self) -> _Extremes:
        return _Extremes()

    def join(self, later: _Extremes) -> None:
        """Take in the rows that follow."""
        self.found += later.found

    def furthest(self, span: Span, least: float) -> tuple[int, ...]:
        """The rows that go furthest beyond a span, if by more than `least`."""
        excess = [max(span[0] - low, high - span[1]) for low, high in self.found]
        beyond = [row for row, far in enumerate(excess) if far > least]
        return tuple(sorted(beyond, key=lambda row: (-excess[row], row))[:FURTHEST])


@dataclass(slots=True)
class _Size:
    """The sum of squares of each row."""

    found: list[float] = field(default_factory=list)

    def add(self, values: np.ndarray) -> None:
        """Take in one row."""
        difference = Difference()
        difference.add(values, values)
        self.found.append(difference.signal)

    def fresh(self) -> _Size:
        return _Size()

    def join(self, later: _Size) -> None:
        """Take in the rows that follow."""
        self.found += later.found
