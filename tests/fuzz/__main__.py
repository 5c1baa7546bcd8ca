"""Look for files that are neither taken nor refused rightly: `python -m tests.fuzz [--seconds N] [TARGET…]`.

Each target runs in a process of its own, which may crash or hang; the file that it was reading then is kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, check

OUTPUT = Path("output/fuzz")
MOST_FOR_ONE = 120.0
BATCH = 20


def fuzz(name: str, seconds: float, first: int) -> None:
    """Draw files of a target until the time is over; the first that is wrong ends it, as small as hypothesis finds."""
    target, end = TARGETS[name], time.monotonic() + seconds
    kept = OUTPUT / f"{name}{target.suffix}"
    count = 0
    while time.monotonic() < end:

        @settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @seed(first)
        @given(st.data())
        def one(data: st.DataObject) -> None:
            nonlocal count
            with tempfile.TemporaryDirectory() as folder:
                content = target.drawn(data.draw, Path(folder))
                kept.write_bytes(content)
                check(target, content, Path(folder))
                count += 1

        one()
        first += 1
    kept.unlink(missing_ok=True)
    print(f"{name}: {count} files, nothing found")


def watch(name: str, seconds: float, first: int) -> bool:
    """Fuzz a target in a child process; True if it found nothing, did not die and did not hang."""
    kept = OUTPUT / f"{name}{TARGETS[name].suffix}"
    # One that an earlier run found looks like a file that hangs.
    kept.unlink(missing_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz", "--here", f"--seconds={seconds}", f"--seed={first}", name]
    )
    while child.poll() is None:
        time.sleep(1)
        if kept.exists() and time.time() - kept.stat().st_mtime > MOST_FOR_ONE:
            child.kill()
    if child.wait() == 0:
        return True
    found = OUTPUT / f"found-{name}-{int(time.time())}{TARGETS[name].suffix}"
    if kept.exists():
        shutil.copy(kept, found)
    print(f"{name}: status {child.returncode}; see {found}")
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--here", action="store_true", help="in this process")
    asked = parser.parse_args()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if asked.here:
        for name in asked.targets:
            fuzz(name, asked.seconds, asked.seed)
        return
    clean = [watch(name, asked.seconds, asked.seed) for name in asked.targets]
    sys.exit(not all(clean))


if __name__ == "__main__":
    main()
