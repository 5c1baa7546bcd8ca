"""Work that splits, on several machines or processes: a Dask or Ray cluster, or processes here, through joblib.

`used` makes a cluster the one that stages find with `current`; where there is none, they work in this process. Jobs
are small: models and samples lie in files that every worker sees at the same path. Results come in the order of the
jobs, and a worker uses as many threads as this process would, so that sums are the same wherever they are made.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from intact import scratch
from intact.errors import ToolchainError
from intact.events import Events, Silence
from intact.records import dataclass
from intact.runtime import engines, worker_terms
from intact.runtime.engines import Engine
from intact.runtime.worker_terms import Terms

Job = TypeVar("Job")
Result = TypeVar("Result")

# So often may workers die before jobs are given up: one that takes too much memory kills every worker that gets it.
ATTEMPTS = 4

_current: Cluster | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers that take jobs, and a folder that all of them see."""

    engine: Engine
    folder: Path
    events: Events = field(default_factory=Silence)

    def each(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """The result of each job, in order."""
        early: dict[int, Result] = {}
        wanted = 0
        for number, result in self.as_done(function, jobs):
            early[number] = result
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1

    def as_done(
        self, function: Callable[[Job], Result], jobs: Sequence[Job], *, threads: int | None = None
    ) -> Iterator[tuple[int, Result]]:
        """The result of each job with its number, as they come; jobs of a worker that dies are done again by others.

        With `threads`, workers use that many, in place of as many as this process would.
        """
        terms, left = worker_terms.here(threads), dict(enumerate(jobs))
        for attempt in range(ATTEMPTS):
            try:
                for number, result in self._run(function, dict(left), terms):
                    del left[number]
                    yield number, result
                return
            except engines.deaths() as death:
                if attempt == ATTEMPTS - 1:
                    raise self._given_up(death) from death
            except self.engine.given_up as death:
                raise self._given_up(death) from death

    def _run(
        self, function: Callable[[Job], Result], jobs: Mapping[int, Job], terms: Terms
    ) -> Iterator[tuple[int, Result]]:
        # Loaded where it is needed, since most builds use no cluster.
        import joblib

        with joblib.parallel_config(**self.engine.config):
            pool = joblib.Parallel(batch_size=1, return_as=self.engine.returns, **self.engine.limits)
            work = _packed if self.engine.is_read_only else _numbered
            done = pool(joblib.delayed(work)(number, function, job, terms) for number, job in jobs.items())
            yield from map(pickle.loads, done) if self.engine.is_read_only else done

    def _given_up(self, death: Exception) -> ToolchainError:
        """The error for jobs that no worker survives."""
        last, fix = str(death).partition("\n")[0], "look at the memory of the workers, and at their logs"
        return ToolchainError("E196", f"--cluster {self.engine.name}: workers keep dying: {last}", fix=fix)


def _numbered(number: int, function: Callable[[Job], Result], job: Job, terms: Terms) -> tuple[int, Result]:
    return number, worker_terms.perform(function, job, terms)


def _packed(number: int, function: Callable[[Job], Result], job: Job, terms: Terms) -> bytes:
    """The result as bytes, of which arrays are made that can be written to."""
    return pickle.dumps(_numbered(number, function, job, terms))


def current() -> Cluster | None:
    """The cluster that this process works on, or None."""
    return _current


@contextmanager
def used(name: str | None, near: Path | None = None, events: Events | None = None) -> Iterator[Cluster | None]:
    """Work on a cluster until the block ends; `near` is a folder on a disk that its workers see too.

    `name` is tcp://HOST:PORT of a Dask scheduler, ray://HOST:PORT, local, or local:N for N processes here.
    """
    global _current
    if name is None:
        yield None
        return
    before = _current
    with ExitStack() as stack:
        engine = stack.enter_context(engines.connected(name))
        _compare(engine, events or Silence())
        folder = stack.enter_context(scratch.folder("cluster", inside=None if near is None else _there(near)))
        _current = Cluster(engine, folder, events or Silence())
        _current.events.note(f"working on {engine}")
        try:
            yield _current
        finally:
            _current = before


def _there(folder: Path) -> Path:
    """A folder, or the nearest one around it that is there: it may be made only when something goes into it."""
    resolved = folder.resolve()
    return next(place for place in (resolved, *resolved.parents) if place.is_dir())


def _compare(engine: Engine, events: Events) -> None:
    """Refuse workers with other versions than are here; tell of those with other processors."""
    mine = worker_terms.here().versions
    for worker, found in engine.asked(worker_terms.versions).items():
        differs = worker_terms.difference(mine, found)
        if differs is not None:
            raise worker_terms.refusal(worker, differs)
        if found[worker_terms.PROCESSOR] != mine[worker_terms.PROCESSOR]:
            events.warn(
                f"worker {worker} has another kind of processor ({found[worker_terms.PROCESSOR]}, here "
                f"{mine[worker_terms.PROCESSOR]}): sums may differ in their last places, and so may bytes"
            )
