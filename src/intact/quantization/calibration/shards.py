"""Rows in shards: each is summed up by itself, here or by a worker of a cluster, and shards are joined in their order.

The split depends on the rows alone, never on who works, so that sums of floats are the same wherever they are made. A
worker reads the model and its rows itself, from files that are checked by digest.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import onnx_ir as ir

from intact import scratch
from intact.data.dataset import Dataset
from intact.data.shared_rows import SharedRows, shared
from intact.errors import ToolchainError
from intact.model import io
from intact.records import dataclass
from intact.runtime import cluster, ort_cpu, pieces, worker_terms

# Few enough to share out what is usual, 128 rows, and enough to make the start of a session cheap.
ROWS = 16

Feeds = Mapping[str, np.ndarray]


class Watcher(Protocol):
    """Whoever sees the values of a tensor, row after row, and can be joined with one that has seen the next rows."""

    def add(self, values: np.ndarray, /) -> None:
        """Take in one row."""

    # Each is joined with its own kind only.
    def fresh(self) -> Any:
        """One like this that has seen nothing."""

    def join(self, later: Any, /) -> None:
        """Take in what another has seen of the rows that follow."""


Watchers = Mapping[str, Sequence[Watcher]]
Kind = TypeVar("Kind", bound=Watcher)


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Some rows for a worker: files with the model and with watchers that have seen nothing, and their digests."""

    model: Path
    watchers: Path
    digests: tuple[str, ...]
    rows: SharedRows
    threads: int


def of_rows(rows: Iterable[Feeds]) -> Iterator[Iterator[Feeds]]:
    """The shards of some rows, each to be gone through before the next."""
    left = iter(rows)
    for first in left:
        yield itertools.chain([first], itertools.islice(left, ROWS - 1))


def fresh(watchers: Mapping[str, Sequence[Kind]]) -> dict[str, list[Kind]]:
    """The same watchers, which have seen nothing."""
    return {name: [one.fresh() for one in several] for name, several in watchers.items()}


def join(watchers: Watchers, later: Watchers) -> None:
    """Let watchers take in what the same ones have seen of the rows that follow."""
    for name, several in watchers.items():
        for one, other in zip(several, later[name], strict=True):
            one.join(other)


def watched_session(model: ir.Model, tensors: Iterable[str], threads: int) -> ort_cpu.Session | None:
    """`session_of` for `watch_rows` with so many threads: one is for those who look at a row while the next runs."""
    return session_of(model, tensors, max(1, threads - 1))


def session_of(model: ir.Model, tensors: Iterable[str], threads: int) -> ort_cpu.Session | None:
    """A session that gives the computed ones among `tensors`, or None where there are none."""
    inputs = {value.name for value in model.graph.inputs}
    computed = [name for name in tensors if name not in inputs]
    if not computed:
        return None
    if not ort_cpu.is_worth_optimizing(model):
        return pieces.opened(model, computed, threads=threads)
    return ort_cpu.Session(model, optimize=True, outputs=computed, threads=threads)


def watch_rows(
    session: ort_cpu.Session | None,
    watchers: Watchers,
    rows: Iterable[Feeds],
    threads: int,
    progress: Callable[[], None],
) -> None:
    """Run a model over rows, one after the other, and give the watchers of each tensor its values.

    Watchers work at once, each in one thread for a row: none sees the rows in another order. The next row runs
    meanwhile, where there is a core and memory for it.
    """
    alone = threads == 1 or ort_cpu.spares_memory() or isinstance(session, pieces.SessionInPieces)
    found = seen(session, rows) if session is None or alone else ahead(session, rows)
    with ThreadPoolExecutor(threads) as pool:
        for values, is_new in found:
            watched = values.keys() & watchers.keys()
            done = [pool.submit(one.add, values[name]) for name in watched for one in watchers[name]]
            for each in done:
                each.result()
            if is_new:
                progress()


def seen(session: ort_cpu.Session | None, rows: Iterable[Feeds]) -> Iterator[tuple[Feeds, bool]]:
    """Inputs and tensors of each row, in parts where the session is one in pieces, and True for its first part."""
    if not isinstance(session, pieces.SessionInPieces):
        yield from (({**row, **(session.run_over(row) if session is not None else {})}, True) for row in rows)
        return
    left = iter(rows)
    # The source of a row may write the next one into the same arrays.
    while block := [{name: array.copy() for name, array in row.items()} for row in itertools.islice(left, pieces.ROWS)]:
        yield from ((row, True) for row in block)
        yield from ((values, False) for _, values in session.parts(block))


def ahead(session: ort_cpu.Session, rows: Iterable[Feeds]) -> Iterator[tuple[Feeds, bool]]:
    """`seen`, with the next row running while the last is looked at: two sets of arrays take turns."""
    twins = itertools.cycle((session.twin(), session.twin()))
    with ThreadPoolExecutor(1) as runner:
        running: Future[Feeds] | None = None
        for row in rows:
            # The source of a row may write the next one into the same arrays.
            feeds = {name: array.copy() for name, array in row.items()}
            following = runner.submit(_both, next(twins), feeds)
            if running is not None:
                yield running.result(), True
            running = following
        if running is not None:
            yield running.result(), True


def _both(session: ort_cpu.Session, feeds: Feeds) -> Feeds:
    """Inputs and tensors of a row."""
    return {**feeds, **session.run_over(feeds)}


def on_cluster(
    model: ir.Model,
    watchers: Mapping[str, Sequence[Kind]],
    rows: Iterable[Feeds],
    threads: int,
    progress: Callable[[], None],
) -> Iterator[Mapping[str, Sequence[Kind]]] | None:
    """Let workers watch the shards; yield their watchers in order. None without a cluster, or for a single shard."""
    found = cluster.current()
    if found is None or not isinstance(rows, Sized) or len(rows) <= ROWS:
        return None
    return _spread(found, model, watchers, rows, threads, progress)


def _spread(
    found: cluster.Cluster,
    model: ir.Model,
    watchers: Mapping[str, Sequence[Kind]],
    rows: Iterable[Feeds],
    threads: int,
    progress: Callable[[], None],
) -> Iterator[Mapping[str, Sequence[Kind]]]:
    with scratch.folder("pass", inside=found.folder) as folder:
        empty = folder / "watchers"
        empty.write_bytes(pickle.dumps(fresh(watchers)))
        files = io.save(model, folder / "model.onnx")
        digests = tuple(io.sha256_of(file) for file in (empty, *files))
        every = _shared(rows, found, folder)
        parts = [every.part(start, start + ROWS) for start in range(0, len(every), ROWS)]
        jobs = [ShardJob(files[0], empty, digests, part, threads) for part in parts]
        for part, seen in zip(parts, found.each(watch_shard, jobs), strict=True):
            yield cast("Mapping[str, Sequence[Kind]]", seen)
            for _ in range(len(part)):
                progress()


def _shared(rows: Iterable[Feeds], found: cluster.Cluster, folder: Path) -> SharedRows:
    """`rows` as workers read them; what is in no file is written down, once where it is known to be the same."""
    kept = found.folder / f"rows-{rows.sha256}" if isinstance(rows, Dataset) else folder / "rows"
    new = not kept.exists()
    kept.mkdir(exist_ok=True)
    every = shared(rows, kept)
    if new and any(kept.iterdir()):
        found.events.note(f"{len(every)} rows that are in no file are written down beside the output for the workers")
    return every


def watch_shard(job: ShardJob) -> dict[str, list[Watcher]]:
    """Run the rows of one shard, here or in a worker, and return the watchers that have seen them."""
    session = _opened(job.model, job.watchers, job.digests, job.threads)
    watchers: dict[str, list[Watcher]] = pickle.loads(job.watchers.read_bytes())
    # A worker may do several jobs at once, in threads: each needs arrays of its own.
    watch_rows(session.twin() if session is not None else None, watchers, job.rows, job.threads, lambda: None)
    return watchers


@lru_cache(maxsize=1)
def _opened(model: Path, watchers: Path, digests: tuple[str, ...], threads: int) -> ort_cpu.Session | None:
    """The session of a pass, made once in each worker; refuse files that are not those that were written."""
    try:
        found = tuple(io.sha256_of(file) for file in (watchers, *_files(model, len(digests) - 1)))
    except (OSError, ToolchainError, ValueError) as problem:
        raise _unseen(model, str(problem)) from problem
    if found != digests:
        raise _unseen(model, "its content is another")
    return watched_session(io.load(model), pickle.loads(watchers.read_bytes()), threads)


def _files(model: Path, count: int) -> list[Path]:
    return [model, model.with_name(f"{model.name}.data")][:count]


def _unseen(model: Path, why: str) -> ToolchainError:
    """The error for a worker that cannot read the folder of a pass."""
    return ToolchainError(
        "E194",
        f"worker {worker_terms.name()} does not see what was written for it: {why}",
        source=str(model),
        fix="put -o into a folder that all workers see at the same path",
    )
