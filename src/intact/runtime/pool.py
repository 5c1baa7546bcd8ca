"""Several children at once, for work whose parts do not depend on one another."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from intact.runtime.cores import cores

T = TypeVar("T")


def in_order(jobs: Iterable[AbstractContextManager[Callable[[], T]]], workers: int) -> Iterator[T]:
    """The result of each job, in the order of the jobs, with at most `workers` of them under way at a time.

    A job begins when it is entered and is waited for by calling what it gives. Whatever goes wrong, none outlives this.
    """
    under_way: deque[tuple[ExitStack, Callable[[], T]]] = deque()
    with ExitStack() as all_of_them:
        for job in jobs:
            if len(under_way) == workers:
                yield _finish(*under_way.popleft())
            stack = all_of_them.enter_context(ExitStack())
            under_way.append((stack, stack.enter_context(job)))
        while under_way:
            yield _finish(*under_way.popleft())


def _finish(stack: ExitStack, wait: Callable[[], T]) -> T:
    with stack:
        return wait()


def workers(jobs: int, bytes_each: int) -> int:
    """The number of `jobs` that may run at once: one for each core that is ours, in at most half of the free memory.

    What is ours follows affinity, control groups and LOKY_MAX_CPU_COUNT, as for what goes through joblib.
    """
    ours, free = cores(), free_memory()
    return max(1, min(ours, jobs, ours if free is None else free // 2 // bytes_each))


def free_memory() -> int | None:
    """Bytes that new processes can have without swapping, or None where the system does not say."""
    if sys.platform != "linux":
        return None
    with open("/proc/meminfo", encoding="ascii") as lines:
        figures = dict(line.split(":", 1) for line in lines)
    return int(figures["MemAvailable"].split()[0]) * 1024
