"""Engines that run jobs: processes here, a Dask scheduler, a Ray cluster, or another backend of joblib."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from intact.errors import NotAvailable, SettingsError, ToolchainError
from intact.records import dataclass
from intact.runtime.cores import cores

LOCAL, DASK, RAY = "local", "dask", "ray"
ALLOWED = "tcp://HOST:PORT of a Dask scheduler, ray://HOST:PORT, local, or local:N for N processes here"
# Packages that add a backend to joblib when they are imported, by the backend's name.
PACKAGES = {DASK: "distributed", RAY: "ray.util.joblib"}
_DASK_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx", "inproc")
_DASK_BACKEND = "dask for intact"
_SECONDS = 10.0

Versions = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Engine:
    """A backend of joblib, ready to work: its settings, and a way to ask every worker for something."""

    name: str
    config: Mapping[str, Any]
    limits: Mapping[str, Any] = field(default_factory=dict)
    ask: Callable[[Callable[[], Versions]], Mapping[str, Versions]] | None = None
    workers: int | None = None
    returns: str = "generator_unordered"
    """The way in which joblib hands results over: as they come, unless the backend can do no such thing."""

    is_read_only: bool = False
    """True if arrays of a result lie in memory that it shares with others, and must not be written to."""

    given_up: tuple[type[Exception], ...] = ()
    """Exceptions that it raises when it gives up a job that has killed several workers."""

    def __str__(self) -> str:
        return self.name if self.workers is None else f"{self.name}: {self.workers} workers"

    def asked(self, function: Callable[[], Versions]) -> Mapping[str, Versions]:
        """The answer of each worker that can be asked by itself, by its name; the others tell with their first job."""
        return {} if self.ask is None else self.ask(function)


@contextmanager
def connected(name: str) -> Iterator[Engine]:
    """The engine of this name, for as long as the block lasts."""
    scheme, address = name.partition("://")[::2]
    if name == LOCAL or name.startswith(f"{LOCAL}:"):
        yield _local(name)
    elif name == DASK or (address and scheme in _DASK_SCHEMES):
        with _dask(name) as engine:
            yield engine
    elif name == RAY or (address and scheme == RAY):
        with _ray(name) as engine:
            yield engine
    elif name in _backends():
        yield Engine(name, {"backend": name})
    else:
        raise SettingsError("S197", f"--cluster {name}: joblib has no backend of this name", allowed=ALLOWED)


def deaths() -> tuple[type[Exception], ...]:
    """Exceptions that are raised here when a worker dies; Dask gives its jobs to others without a word."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    return (TerminatedWorkerError,)


def _backends() -> Mapping[str, Any]:
    """The backends of joblib, which is loaded here and not before: a build without a cluster needs none of it."""
    from joblib import parallel

    return dict(parallel.BACKENDS)


def _local(name: str) -> Engine:
    """Processes here."""
    count = name.partition(":")[2]
    if name != LOCAL and (not count.isdecimal() or int(count) < 1):
        raise SettingsError("S197", f"--cluster {name}: {count!r} is no number of processes", allowed=ALLOWED)
    workers = int(count) if count else cores()
    # joblib runs one job in this very process: one worker is two that get one job at a time.
    return Engine(name, {"backend": "loky"}, {"n_jobs": max(workers, 2), "pre_dispatch": workers}, workers=workers)


@contextmanager
def _dask(name: str) -> Iterator[Engine]:
    """A Dask scheduler by its address, or the one that a client in this process has."""
    distributed = _imported(DASK, name)
    # It would log to the terminal what becomes an error of ours, or is mended by giving a job to another worker.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    if name == DASK:
        yield _of_client(_client_here(distributed), name)
        return
    try:
        client = distributed.Client(name, timeout=_SECONDS, set_as_default=False)
    except (OSError, ValueError) as problem:
        fix = "look at its address; dask scheduler starts one"
        raise ToolchainError("E198", f"--cluster {name}: no scheduler answers: {problem}", fix=fix) from problem
    try:
        yield _of_client(client, name)
    finally:
        client.close()


def _client_here(distributed: Any) -> Any:
    """The Dask client that a caller in Python has made; the command line has none."""
    try:
        return distributed.get_client()
    except ValueError as problem:
        raise SettingsError(
            "S221", "--cluster dask: which scheduler?", allowed=ALLOWED, fix="give its address, as tcp://HOST:8786"
        ) from problem


def _of_client(client: Any, name: str) -> Engine:
    try:
        client.wait_for_workers(1, timeout=_SECONDS)
    except TimeoutError as problem:
        raise ToolchainError(
            "E198", f"--cluster {name}: the scheduler has no workers", fix=f"dask worker {name} starts some"
        ) from problem

    killed: type[Exception] = importlib.import_module("distributed.scheduler").KilledWorker

    def ask(function: Callable[[], Versions]) -> Mapping[str, Versions]:
        try:
            return dict(client.run(function))
        # Whatever its workers lack, unpickling a function of ours shows it first.
        except Exception as problem:
            raise ToolchainError(
                "E199", f"--cluster {name}: a worker cannot run intact: {problem}", fix="install intact on every worker"
            ) from problem

    return Engine(
        name, {"backend": _never_alone(), "client": client}, ask=ask, workers=len(client.ncores()), given_up=(killed,)
    )


def _never_alone() -> str:
    """A backend of joblib that gives work to Dask if there is one worker, too: joblib would do it all here."""
    from joblib import parallel

    if _DASK_BACKEND not in parallel.BACKENDS:
        parallel.EXTERNAL_BACKENDS[DASK]()
        usual: Any = parallel.BACKENDS[DASK]

        class _Backend(usual):  # type: ignore[misc]
            def effective_n_jobs(self, n_jobs: int) -> int:
                return max(2, int(super().effective_n_jobs(n_jobs)))

        parallel.register_parallel_backend(_DASK_BACKEND, _Backend)
    return _DASK_BACKEND


@contextmanager
def _ray(name: str) -> Iterator[Engine]:
    _imported(RAY, name).register_ray()
    ray: Any = importlib.import_module("ray")
    ours = not ray.is_initialized()
    # Ray reports its use over the network unless this is set; a choice that the user made stands.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if ours:
        ray.init(address=None if name == RAY else name, logging_level=logging.ERROR, log_to_driver=False)
    try:
        # All of its processors; joblib would take one, and work here. Its backend hands over all results at once.
        yield Engine(name, {"backend": RAY}, {"n_jobs": -1}, returns="list", is_read_only=True)
    finally:
        if ours:
            ray.shutdown()


def _imported(kind: str, name: str) -> Any:
    try:
        return importlib.import_module(PACKAGES[kind])
    except ImportError as problem:
        package = PACKAGES[kind].partition(".")[0]
        fix = 'pip install "intact[cluster]"' if kind == DASK else f"pip install {package}"
        raise NotAvailable("E195", f"--cluster {name}: {package} is not installed", fix=fix) from problem
