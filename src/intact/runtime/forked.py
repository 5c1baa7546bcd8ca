"""A worker that is a fork of this process: it has all that is imported here, and costs a tenth of a new interpreter.

A fork has one thread alone: a lock that another thread holds at that moment stays locked in it for ever. So this is for
Linux, for processes with no thread but the main one. Those of OpenBLAS do not count: it ends them before every fork.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from intact.runtime import worker

_TASKS = Path("/proc/self/task")
# The signals for which programs set handlers; that of the keyboard does not reach a worker.
_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Fork:
    """A forked worker that takes orders as `worker` does, with what `subprocess.Popen` has for one."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Fork a worker with this working folder, which prints into its `log.txt`."""
        orders, told = os.pipe()
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _work(orders, log, folder, environment)
        # Whichever of the two is first: whoever ends the worker ends its group.
        _lead_group(self.pid)
        os.close(orders)
        os.close(log)
        self.stdin: io.FileIO | None = io.FileIO(told, "w")

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            self._ended(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        """The exit status, once it has ended."""
        while self.returncode is None:
            self._ended(0)
        return self.returncode

    def _ended(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # The program has its own way to wait for all children, and took the status.
            self.returncode = 0
            return
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def is_safe() -> bool:
    """True if this process can be forked: it has its main thread and those that OpenBLAS ends by itself."""
    if not may_be_safe():
        return False
    try:
        tasks = len(os.listdir(_TASKS))
    except OSError:
        return False
    return tasks == 1 or tasks <= _openblas_threads()


def may_be_safe() -> bool:
    """True if Python knows of no reason why this process cannot be forked."""
    alone = threading.active_count() == 1 and threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and alone


def _openblas_threads() -> int:
    """The threads that products are made with, the main one among them."""
    import threadpoolctl

    libraries = threadpoolctl.threadpool_info()
    return 1 + sum(int(found["num_threads"]) - 1 for found in libraries if found["internal_api"] == "openblas")


def _lead_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def _work(orders: int, log: int, folder: Path, environment: Mapping[str, str]) -> NoReturn:
    """Carry out orders until there are no more; nothing that the program has to do at its end is done here."""
    try:
        import fcntl

        _lead_group(0)
        for handled in _HANDLED:
            signal.signal(handled, signal.SIG_DFL)
        above = [fcntl.fcntl(end, fcntl.F_DUPFD, 3) for end in (orders, log, log)]
        for number, end in enumerate(above):
            os.dup2(end, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # What the program has printed and not yet written out is its own.
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        # A collection would write into every page that is shared.
        gc.disable()
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None
        worker.main(line.rstrip("\n") for line in sys.stdin)
    finally:
        os._exit(1)
