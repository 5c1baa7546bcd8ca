"""The number of processor cores that are ours: as joblib counts them, without loading it, which takes long."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

# More processes than this cannot be waited for on Windows.
_MOST_ON_WINDOWS = 61
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_BEFORE = (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


def cores() -> int:
    """The least of what the machine has, affinity and control groups leave, and LOKY_MAX_CPU_COUNT allows."""
    machine = os.cpu_count() or 1
    if sys.platform == "win32":
        machine = min(machine, _MOST_ON_WINDOWS)
    allowed = int(os.environ.get("LOKY_MAX_CPU_COUNT", machine))
    return max(1, min(machine, _by_affinity(machine), _by_quota(machine), allowed))


def _by_affinity(machine: int) -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine


def _by_quota(machine: int) -> int:
    """Processors whose time a control group of Linux gives us, rounded up."""
    words = _words(_QUOTA)
    if len(words) != 2:
        words = [word for path in _QUOTA_BEFORE for word in _words(path)]
    if len(words) != 2 or words[0] == "max":
        return machine
    quota, period = map(int, words)
    return math.ceil(quota / period) if quota > 0 and period > 0 else machine


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []
