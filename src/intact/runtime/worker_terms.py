"""The terms that a worker shares with the process that gives it jobs: versions, and threads.

Sums of floats depend on how many threads make them, in ONNX Runtime as in the linear algebra of numpy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from intact import environment
from intact.errors import ToolchainError
from intact.records import dataclass
from intact.runtime import host_cpu, ort_cpu

Job = TypeVar("Job")
Result = TypeVar("Result")

PROCESSOR = "processor"
SOURCES = "sources of intact"
# What may differ: other kernels of the system compute the same.
_FREE = (PROCESSOR, "platform")


@dataclass(frozen=True, slots=True)
class Terms:
    """Versions that have to agree, and the threads of ONNX Runtime and of numpy's linear algebra."""

    versions: Mapping[str, str]
    sessions: int
    algebra: int


def here(threads: int | None = None) -> Terms:
    """The terms of this process; with `threads`, all that computes has so many."""
    return Terms(versions(), threads or ort_cpu.threads(), threads or _algebra_threads())


@cache
def versions() -> dict[str, str]:
    """All that decides the bytes of a result: versions, the program itself, and the kind of processor."""
    return {**environment.versions(), SOURCES: environment.sources(), PROCESSOR: _processor()}


def difference(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """The first version that differs, in words, or None."""
    names = [name for name in mine if name not in _FREE and theirs.get(name) != mine[name]]
    return next((f"{name} {theirs.get(name, 'missing')} there, {mine[name]} here" for name in names), None)


def refusal(worker: str, differs: str) -> ToolchainError:
    """The error for a worker that would compute something else."""
    return ToolchainError(
        "E197", f"worker {worker}: {differs}", allowed="the same versions everywhere", fix="install those on the worker"
    )


def perform(function: Callable[[Job], Result], job: Job, terms: Terms) -> Result:
    """Do one job in whatever process this is, on the terms of the process that gave it."""
    import threadpoolctl

    differs = difference(terms.versions, versions())
    if differs is not None:
        raise refusal(name(), differs)
    ort_cpu.use_threads(terms.sessions)
    with threadpoolctl.threadpool_limits(terms.algebra, user_api="blas"):
        return function(job)


def name() -> str:
    """The name of this process as a worker."""
    import socket

    return f"{socket.gethostname()}:{os.getpid()}"


def _algebra_threads() -> int:
    return max((int(pool["num_threads"]) for pool in _pools()), default=1)


def _pools() -> list[dict[str, Any]]:
    import numpy  # noqa: F401  # its library is looked for among those that are loaded
    import threadpoolctl

    return [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]


def _processor() -> str:
    """The kernels that sums are made with, as far as libraries choose them by the processor."""
    kernels = sorted({str(pool.get("architecture")) for pool in _pools()})
    return " ".join([*kernels, "saturating" if host_cpu.adds_pairs_in_16_bits() else "exact"])
