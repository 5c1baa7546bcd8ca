"""A process of Rockchip's toolkit that stays between orders: importing it takes longer than compiling a small model."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from intact.runtime import loads, process
from intact.runtime.process import Call, Interpreter, Reply

# Seconds without an order after which it ends: it holds a gigabyte.
IDLE_SECONDS = 30.0
# Nobody sees the bars of its progress, which it draws hundreds of times for one model, and its packages warn of each
# other tens of thousands of times. It copies whole models again and again: memory that glibc gives back to the system
# for each of them comes back page by page, which takes a tenth of the time of a large model.
ENVIRONMENT = {
    **loads.NO_THREADS,
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": f"{1 << 40}",
}


class StandingToolkit:
    """One process for orders that follow each other; it is started when needed, and ends when nothing follows."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._call: Call | None = None
        self._terms: tuple[Interpreter, float] | None = None
        self._timer: threading.Timer | None = None

    def call(
        self,
        job: str,
        order: Mapping[str, object],
        python: Interpreter,
        timeout: float,
        look: Callable[[], None] | None = None,
    ) -> Reply:
        """Run a job, as `process.call` does; one that fails ends the process, whose state nobody knows then."""
        with self._lock:
            self._rest()
            if self._call is None or self._terms != (python, timeout):
                self.close()
                self._call = self._stack.enter_context(
                    process.staying(timeout=timeout, python=python, environment=ENVIRONMENT)
                )
                self._terms = (python, timeout)
            try:
                reply = self._call(job, order, look)
            except BaseException:
                self.close()
                raise
            self._timer = threading.Timer(IDLE_SECONDS, self.close)
            self._timer.daemon = True
            self._timer.start()
            return reply

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._rest()
            self._stack.close()
            self._call = None

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


STANDING = StandingToolkit()
atexit.register(STANDING.close)
