"""Runs the float model once over the data and remembers what the plan needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Protocol

import numpy as np
import onnx_ir as ir

from intact.errors import DataError
from intact.model import query
from intact.quantization.calibration import shards
from intact.quantization.calibration.shards import Watcher
from intact.quantization.calibration.sketch import Sketch
from intact.results import QuantPlan
from intact.runtime import ort_cpu
from intact.runtime.pieces import SessionInPieces

# Rows that are run at once, each with arrays of its own for everything that is observed.
_AT_ONCE = 2


class Rows(Protocol):
    """Samples that can be counted, and gone through more than once."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]: ...


class Observation:
    """Sketches of a model's tensors before a run: of all that decide a grid, those in `watched` with a histogram.

    Computed tensors whose sketch is `known` are not looked at again.
    """

    def __init__(
        self,
        model: ir.Model,
        plan: QuantPlan,
        *,
        watched: Collection[str] = (),
        known: Mapping[str, Sketch] = MappingProxyType({}),
    ) -> None:
        self.model, self.plan, self.sketches = model, plan, _empty_sketches(plan, frozenset(watched))
        constants = {name: v.const_value for name, v in query.initializers(model).items() if name in self.sketches}
        for name, tensor in constants.items():
            if tensor is not None:
                self.sketches[name].add(tensor.numpy())
        empty = {name: sketch for name, sketch in self.sketches.items() if name not in constants}
        fit = {name: known[name] for name, sketch in empty.items() if name in known and known[name].tells(sketch)}
        self.sketches |= fit
        self.missing = [name for name in empty if name not in fit]

    def settled(self) -> dict[str, Sketch]:
        """The sketches that are complete before the run: of constants, and those that are known."""
        return {name: sketch for name, sketch in self.sketches.items() if name not in self.missing}

    def checked(self) -> dict[str, Sketch]:
        """The sketches after the run, if none of a tensor that ran is empty."""
        values = query.values(self.model)
        ran = {
            name: self.sketches[name]
            for name in dict.fromkeys(map(self.plan.source, self.plan.observed))
            if not _never_ran(self.model, values[name], self.sketches[name])
        }
        _refuse_empty(ran)
        return self.sketches


def observe(
    model: ir.Model,
    plan: QuantPlan,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    watched: Collection[str] = (),
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Sketch]:
    """A sketch of every tensor that decides a grid, over all `rows`, and of those in `watched` with a histogram."""
    begun = Observation(model, plan, watched=watched)
    empty = {name: begun.sketches[name] for name in begun.missing}
    for seen in _observed(model, empty, rows, progress):
        begun.sketches |= {name: begun.sketches[name].merge(sketch) for name, sketch in seen.items()}
    return begun.checked()


def observe_beside(
    begun: Observation,
    others: Mapping[str, Sequence[Watcher]],
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Sketch]:
    """`observe` and `watch` in one run: the sketches, while the watchers in `others` see their tensors."""
    every: dict[str, list[Watcher]] = {name: [begun.sketches[name]] for name in begun.missing}
    for name, several in others.items():
        every.setdefault(name, []).extend(several)
    watch(begun.model, every, rows, progress=progress)
    return begun.checked()


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
    watchers: Mapping[str, Sequence[Watcher]],
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the model over `rows` and give the watchers of each tensor its values, one row after the other.

    Rows are summed up in shards, which are then joined in their order: here and on a cluster in the same way. A
    watcher that keeps values copies them: the next row is written over them.
    """
    threads = ort_cpu.threads()
    elsewhere = shards.on_cluster(model, watchers, rows, threads, progress)
    if elsewhere is not None:
        for seen in elsewhere:
            shards.join(watchers, seen)
        return
    session = shards.watched_session(model, watchers, threads)
    for number, shard in enumerate(shards.of_rows(rows)):
        # The first sums need no place of their own.
        seen = watchers if number == 0 else shards.fresh(watchers)
        shards.watch_rows(session, seen, shard, threads, progress)
        if number:
            shards.join(watchers, seen)


class _Observer:
    """The observations of one thread: a sketch of each tensor over the rows that it was given."""

    def __init__(self, session: ort_cpu.Session | None, empty: Mapping[str, Sketch]) -> None:
        self.session = session.twin() if session is not None else None
        self.sketches = {name: sketch.fresh() for name, sketch in empty.items()}

    def add(self, feeds: Mapping[str, np.ndarray]) -> _Observer:
        for values, _ in shards.seen(self.session, [feeds]):
            self.take(values)
        return self

    def take(self, values: Mapping[str, np.ndarray]) -> None:
        for name in values.keys() & self.sketches.keys():
            self.sketches[name].add(values[name])


def _observed(
    model: ir.Model,
    empty: Mapping[str, Sketch],
    rows: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[], None],
) -> Iterator[Mapping[str, Sketch]]:
    """The sketches of parts of the rows: those that a thread ran here, or those of a shard on a cluster."""
    threads = ort_cpu.threads() - min(_AT_ONCE, ort_cpu.threads()) + 1
    watchers = {name: [sketch] for name, sketch in empty.items()}
    elsewhere = shards.on_cluster(model, watchers, rows, threads, progress)
    if elsewhere is not None:
        for found in elsewhere:
            yield {name: sketch for name, (sketch,) in found.items()}
        return
    observers = _observers(model, empty, rows, progress)
    while observers:
        # Those that were merged are held no longer: together they take as much as a copy of the graph.
        yield observers.pop(0).sketches


def _observers(
    model: ir.Model,
    empty: Mapping[str, Sketch],
    rows: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[], None],
) -> list[_Observer]:
    """Run the model over `rows`, several at once: sketches merge, whoever has seen which row."""
    count = min(_AT_ONCE, ort_cpu.threads())
    # The threads that run rows compute too.
    session = shards.session_of(model, empty, ort_cpu.threads() - count + 1)
    if isinstance(session, SessionInPieces):
        return [_in_pieces(_Observer(session, empty), session, rows, progress)]
    idle = [_Observer(session, empty) for _ in range(count)]
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


def _in_pieces(
    observer: _Observer,
    session: SessionInPieces,
    rows: Iterable[Mapping[str, np.ndarray]],
    progress: Callable[[], None],
) -> _Observer:
    """Let one observer see all rows: they go through a long graph together, piece by piece."""
    for values, is_new in shards.seen(session, rows):
        observer.take(values)
        if is_new:
            progress()
    return observer


def _empty_sketches(plan: QuantPlan, watched: Collection[str]) -> dict[str, Sketch]:
    """One sketch per tensor; it has a histogram if any grid that it decides needs more than extremes.

    A percentile is about the few values beyond it, of which a sample has too few: there all values count.
    """
    methods: dict[str, set[str]] = {}
    for entry in (*plan.observed, *sorted(watched)):
        found = methods.setdefault(plan.source(entry), set())
        found |= {plan.grids[plan.tensors[entry]].method} if entry in plan.tensors else set()
        found |= {"watched"} if entry in watched else set()
    return {
        tensor: Sketch(histogram=found != {"minmax"}, whole="percentile" in found) for tensor, found in methods.items()
    }


def _refuse_empty(sketches: Mapping[str, Sketch]) -> None:
    """A tensor that never had a finite value has no range: name it rather than invent one."""
    empty = [name for name, seen in sketches.items() if seen.count == 0]
    if empty:
        raise DataError(
            "D140",
            f"{empty[0]}: the model gave no finite value there in any sample ({len(empty)} such tensors)",
            fix="check the calibration inputs: their scale, layout and missing values",
        )
