"""Jobs that die: the first worker that gets one is killed, and whoever gets it then does it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from intact.errors import DataError
from intact.quantization.calibration import shards

MARK = "INTACT_TEST_DEATH"
WATCH_SHARD = shards.watch_shard
"""The function as it is, which a test puts `watch_or_die` in the place of."""


def die_once(mark: Path) -> str:
    """Kill this process, unless one was killed before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return "done"
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process does not go on")


def die_always(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch_or_die(job: shards.ShardJob) -> object:
    """A shard of a calibration in the middle of which the first worker that gets the third one is killed."""
    if job.rows.start == 2 * shards.ROWS:
        die_once(job.model.parent.parent.parent / "mark")
    return WATCH_SHARD(job)


def refuse(number: int) -> None:
    raise DataError("D109", f"{number}: no samples", allowed="at least one", fix="add samples on axis 0")


def square(number: int) -> int:
    return number * number
