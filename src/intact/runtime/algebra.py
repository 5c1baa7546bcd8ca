"""The threads that numpy's linear algebra works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np  # noqa: F401  # its library is looked for among those that are loaded


@contextmanager
def one_thread() -> Iterator[None]:
    """Have every product made by the one thread that asks for it, until the block ends.

    Sums then have the same bits on every number of cores. Threads of the library wait for each other by spinning, which
    on a busy machine took more processor time than the products did; the cores are for those who ask at once.
    """
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        yield
