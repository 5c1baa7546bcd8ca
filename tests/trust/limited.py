"""A command in a process of its own, whose time and memory are watched, with those of its children."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INTACT = (sys.executable, "-c", "from intact.cli.main import main; main()")
PATIENCE = 120.0
"""Seconds on the clock of a machine that is busy; what a command may use is seconds of a processor."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended: its status, its words, and the most memory and time that it and its children took."""

    status: int
    err: str
    out: str
    peak_bytes: int
    seconds: float


def run(words: Sequence[str | Path], **environment: str) -> Ending:
    """Run `intact` with these words; `seconds` are those of processors."""
    before = os.times()
    env = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))}
    process = subprocess.Popen(
        [*INTACT, *map(str, words)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak, end = 0, time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        peak = max(peak, _peak(process.pid))
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
    out, err = process.communicate()
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Ending(process.returncode, err, out, peak, used)


def _peak(pid: int) -> int:
    """The most memory that a process, or one that it started, has held so far."""
    found = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        found = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return max([found, *map(_peak, map(int, children))])
    return found
