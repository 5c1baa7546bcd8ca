"""Models in a process of their own, so that memory is theirs and a vendor's death not ours; `measure` calls this."""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from intact.backends.base import TimedModel
from intact.profiling import profile
from intact.profiling.measure import fitting, session_contender, types_of
from intact.profiling.profile import NodeTime
from intact.profiling.timing import WARM_UP, race
from intact.runtime import ort_cpu

PROFILED_RUNS = 10

Rows = list[dict[str, np.ndarray]]


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """The peak memory of loading and running `model` on the first row of `inputs`, and its nodes with their times."""
    path, timer = Path(request["model"]), request["timer"]
    rows = _rows(request)
    before = peak_bytes()
    run = _contender(path, rows, timer, request["threads"])
    for number in range(WARM_UP):
        run(number)
    peak = peak_bytes()
    del run
    nodes = _session_nodes(path, rows, request["threads"]) if timer is None else _layers(path, rows, timer)
    used = None if peak is None or before is None else peak - before
    return {"peak_bytes": peak, "used_bytes": used, "nodes": [asdict(node) for node in nodes]}


def race_models(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each of `models` in each round."""
    rows, threads = _rows(request), request["threads"]
    contenders = [_contender(Path(model["path"]), rows, model["timer"], threads) for model in request["models"]]
    return {"times": race(contenders, request["rounds"]).tolist()}


def peak_bytes() -> int | None:
    """The most memory that this process has held so far, or None where the system does not say.

    `getrusage` would count what the process that started this one held.
    """
    if sys.platform != "linux":
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found else None


def _rows(request: dict[str, Any]) -> Rows:
    with np.load(request["inputs"], allow_pickle=False) as arrays:
        names = list(enumerate(request["names"]))
        return [{name: arrays[f"{row}.{index}"] for index, name in names} for row in range(request["rows"])]


def _contender(path: Path, rows: Rows, timer: dict[str, Any] | None, threads: int) -> Callable[[int], object]:
    if timer is None:
        return session_contender(path, rows, threads)
    model = _opened(path, timer, profile=False)
    feeds = [fitting(model.inputs, row, path) for row in rows]
    return lambda number: model.run(feeds[number % len(feeds)])


def _opened(path: Path, timer: dict[str, Any], *, profile: bool) -> TimedModel:
    """A model in the runtime that a backend's timer names."""
    model: TimedModel = importlib.import_module(timer["module"]).opened(str(path), timer["order"], profile=profile)
    return model


def _session_nodes(path: Path, rows: Rows, threads: int) -> list[NodeTime]:
    with tempfile.TemporaryDirectory(prefix="intact-profile-") as folder:
        session = ort_cpu.Session(path, optimize=True, threads=threads, profile=Path(folder, "record"))
        feeds = fitting(types_of(session), rows[0], path)
        for _ in range(WARM_UP + PROFILED_RUNS):
            session.run(feeds)
        return profile.read_profile(session.end_profile(), skip=WARM_UP)


def _layers(path: Path, rows: Rows, timer: dict[str, Any]) -> list[NodeTime]:
    model = _opened(path, timer, profile=True)
    found = model.layer_times(fitting(model.inputs, rows[0], path), warm_up=WARM_UP, runs=PROFILED_RUNS)
    return [NodeTime(name, kind, median(times)) for (name, kind), times in found.items()]
