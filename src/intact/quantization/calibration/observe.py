"""Runs the float model once over the data and remembers what the plan needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import onnx_ir as ir

from intact.errors import DataError
from intact.model import query
from intact.quantization.calibration.sketch import Sketch
from intact.results import QuantPlan
from intact.runtime import ort_cpu

# Rows that are run at once, each with arrays of its own for everything that is observed.
_AT_ONCE = 2


class Rows(Protocol):
    """Samples that can be counted, and gone through more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]: ...


def observe(
    model: ir.Model,
    plan: QuantPlan,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    watched: Collection[str] = (),
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Sketch]:
    """A sketch of every tensor that decides a grid, over all `rows`, and of those in `watched` with a histogram."""
    sketches = _empty_sketches(plan, frozenset(watched))
    constants = {name: value.const_value for name, value in query.initializers(model).items() if name in sketches}
    for name, tensor in constants.items():
        if tensor is not None:
            sketches[name].add(tensor.numpy())
    computed = {name: sketch.histogram for name, sketch in sketches.items() if name not in constants}
    for observer in _observers(model, computed, rows, progress):
        sketches |= {name: sketches[name].merge(seen) for name, seen in observer.sketches.items()}
    values = query.values(model)
    observed = dict.fromkeys(map(plan.source, plan.observed))
    _refuse_empty({name: sketches[name] for name in observed if not _never_ran(model, values[name], sketches[name])})
    return sketches


def idle_nodes(model: ir.Model, plan: QuantPlan, seen: Mapping[str, Sketch]) -> list[str]:
    """The nodes in bodies that no row ran, so that nothing is known of their values."""
    values = query.values(model)
    idle = {name for name, sketch in seen.items() if _never_ran(model, values[name], sketch)}
    nodes = (node for node in query.all_nodes(model) if node.name in plan.nodes and node.graph is not model.graph)
    return [
        node.name or ""
        for node in nodes
        if any(value is not None and value.name in idle for value in (*node.inputs, *node.outputs))
    ]


def _never_ran(model: ir.Model, value: ir.Value, sketch: Sketch) -> bool:
    """True for a value of a body, of which not even a NaN was seen."""
    return value.graph is not model.graph and sketch.count == 0 and sketch.nonfinite == 0


def watch(
    model: ir.Model,
    watchers: Mapping[str, Iterable[Callable[[np.ndarray], None]]],
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the model over `rows` and call the watchers of each tensor with its values, one row after the other.

    A watcher that keeps values copies them: the next row is written over them.
    """
    session = _session(model, watchers)
    for feeds in rows:
        values = {**feeds, **(session.run_over(feeds) if session is not None else {})}
        for name, functions in watchers.items():
            for function in functions:
                function(values[name])
        progress()


class _Observer:
    """The observations of one thread: a sketch of each tensor over the rows that it was given."""

    def __init__(self, session: ort_cpu.Session | None, histograms: Mapping[str, bool]) -> None:
        self.session = session.twin() if session is not None else None
        self.sketches = {name: Sketch(histogram=histogram) for name, histogram in histograms.items()}

    def add(self, feeds: Mapping[str, np.ndarray]) -> _Observer:
        values = {**feeds, **(self.session.run_over(feeds) if self.session is not None else {})}
        for name, sketch in self.sketches.items():
            sketch.add(values[name])
        return self


def _observers(
    model: ir.Model,
    histograms: Mapping[str, bool],
    rows: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[], None],
) -> list[_Observer]:
    """Run the model over `rows`, several at once: sketches merge, whoever has seen which row."""
    count = min(_AT_ONCE, ort_cpu.threads())
    # The threads that run rows compute too.
    session = _session(model, histograms, threads=ort_cpu.threads() - count + 1)
    idle = [_Observer(session, histograms) for _ in range(count)]
    busy: deque[Future[_Observer]] = deque()

    def wait() -> None:
        idle.append(busy.popleft().result())
        progress()

    with ThreadPoolExecutor(count) as pool:
        for feeds in rows:
            if not idle:
                wait()
            # The source of a row may write the next one into the same arrays.
            busy.append(pool.submit(idle.pop().add, {name: array.copy() for name, array in feeds.items()}))
        while busy:
            wait()
    return idle


def _session(model: ir.Model, tensors: Iterable[str], threads: int = 0) -> ort_cpu.Session | None:
    """A session that gives the computed ones among `tensors`, or None where there are none."""
    inputs = {value.name for value in model.graph.inputs}
    computed = [name for name in tensors if name not in inputs]
    return ort_cpu.Session(model, optimize=True, outputs=computed, threads=threads) if computed else None


def _empty_sketches(plan: QuantPlan, watched: Collection[str]) -> dict[str, Sketch]:
    """One sketch per tensor; it has a histogram if any grid that it decides needs more than extremes."""
    needs: dict[str, bool] = {}
    for entry in (*plan.observed, *sorted(watched)):
        tensor = plan.source(entry)
        histogram = entry in watched or plan.grids[plan.tensors[entry]].method != "minmax"
        needs[tensor] = needs.get(tensor, False) or histogram
    return {tensor: Sketch(histogram=histogram) for tensor, histogram in needs.items()}


def _refuse_empty(sketches: Mapping[str, Sketch]) -> None:
    """A tensor that never had a finite value has no range: name it rather than invent one."""
    empty = [name for name, seen in sketches.items() if seen.count == 0]
    if empty:
        raise DataError(
            "D140",
            f"{empty[0]}: the model gave no finite value there in any sample ({len(empty)} such tensors)",
            fix="check the calibration inputs: their scale, layout and missing values",
        )
