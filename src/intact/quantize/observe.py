"""Runs the float model once over the data and remembers what the plan needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import onnx_ir as ir

from intact.errors import DataError
from intact.quantize.sketch import Sketch
from intact.results import QuantPlan
from intact.vendor import cpu

# Counting leaves Python's lock for about half of its time: more threads than this would wait for each other.
_WORKERS = 2


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
    for name, tensor in ((name, model.graph.initializers.get(name)) for name in sketches):
        if tensor is not None and tensor.const_value is not None:
            sketches[name].add(tensor.const_value.numpy())
    watchers: dict[str, list[Callable[[np.ndarray], None]]] = {
        name: [sketch.add] for name, sketch in sketches.items() if name not in model.graph.initializers
    }
    watch(model, watchers, rows, progress=progress, workers=_WORKERS)
    _refuse_empty({name: sketches[name] for name in map(plan.source, plan.observed)})
    return sketches


def watch(
    model: ir.Model,
    watchers: Mapping[str, Iterable[Callable[[np.ndarray], None]]],
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Callable[[], None] = lambda: None,
    workers: int = 1,
) -> None:
    """Run the model over `rows` and call the watchers of each tensor with its values, one row at a time.

    A watcher that keeps values copies them: the next row is written over them. `workers` tensors are looked at at once.
    """
    inputs = {value.name for value in model.graph.inputs}
    computed = [name for name in watchers if name not in inputs]
    session = cpu.Session(model, optimize=True, outputs=computed) if computed else None
    with ThreadPoolExecutor(workers) as pool:
        for feeds in rows:
            values = {**feeds, **(session.run_over(feeds) if session is not None else {})}
            done = pool.map(partial(_tell, watchers, values), watchers)
            deque(done, maxlen=0)
            progress()


def _tell(
    watchers: Mapping[str, Iterable[Callable[[np.ndarray], None]]], values: Mapping[str, np.ndarray], name: str
) -> None:
    for function in watchers[name]:
        function(values[name])


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
