"""A command, measured from the start of its process to its end, with all that it starts: seconds, processor, memory."""

from __future__ import annotations

import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peers.environments import clean

# Seconds between two looks at the memory: short against a run, and cheap enough not to slow it.
LOOK_EVERY = 0.05
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a command took, how it ended, and the share of the machine that others used meanwhile."""

    seconds: float
    processor_seconds: float
    peak_bytes: int | None
    others: float | None
    status: int
    said: str


def spent(command: list[str], folder: Path, most_seconds: float) -> Spent:
    """Run a command in a folder, and measure it; one that takes too long is ended with status -9."""
    words = folder / "said.txt"
    busy, start = _busy_seconds(), time.perf_counter()
    with words.open("wb") as sink:
        child = subprocess.Popen(
            command, cwd=folder, stdout=sink, stderr=subprocess.STDOUT, env=clean(), start_new_session=True
        )
        peak, status, usage = _watched(child, start + most_seconds)
    seconds = time.perf_counter() - start
    own = usage.ru_utime + usage.ru_stime
    others = None if busy is None else max(0.0, (_busy_seconds() or 0.0) - busy - own) / seconds / (os.cpu_count() or 1)
    return Spent(seconds, own, peak, others, status, words.read_text(encoding="utf-8", errors="replace"))


def _watched(child: subprocess.Popen[bytes], until: float) -> tuple[int | None, int, os.struct_rusage]:
    """The most memory of the process and its descendants together, its status, and what it used.

    Linux tells at once that a process has ended; elsewhere the next look finds out.
    """
    if not hasattr(os, "pidfd_open"):
        return _looked_at(child, until, [])
    ends = os.pidfd_open(child.pid)
    try:
        return _looked_at(child, until, [ends])
    finally:
        os.close(ends)


def _looked_at(
    child: subprocess.Popen[bytes], until: float, ends: list[int]
) -> tuple[int | None, int, os.struct_rusage]:
    """`_watched`, with what can be read when the process has ended."""
    peak, before = 0, 0
    while True:
        done, status, usage = os.wait4(child.pid, os.WNOHANG)
        if done:
            child.returncode = os.waitstatus_to_exitcode(status)
            return peak or None, child.returncode, usage
        if time.perf_counter() > until:
            os.killpg(child.pid, 9)
        # A child that is about to become another program has its parent's memory for a moment: two looks have to agree.
        now = _together(child.pid)
        peak, before = max(peak, _field(PROC / str(child.pid) / "status", "VmHWM:"), min(now, before)), now
        select.select(ends, [], [], LOOK_EVERY)


def _together(root: int) -> int:
    """Bytes of a process and its descendants now, where it has any; pages that several share count once."""
    family = _family(root)
    return sum(_field(PROC / str(pid) / "smaps_rollup", "Pss:") for pid in family) if len(family) > 1 else 0


def _family(root: int) -> list[int]:
    """A process and its descendants, as far as they are still there."""
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            # The name of the program stands in brackets, and may hold anything.
            parent = int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def _busy_seconds() -> float | None:
    """Processor seconds that the machine has worked since it started, or None where that is not told."""
    try:
        ticks = [int(word) for word in (PROC / "stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    except OSError:
        return None
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")
