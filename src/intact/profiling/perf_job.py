"""Models in a process of their own, so that memory is theirs and a vendor's death not ours; `measure` calls this."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from statistics import median

import numpy as np

from intact import scratch
from intact.backends import sample_files
from intact.backends.base import TimedModel
from intact.profiling import profile
from intact.profiling.measure import Examined, ExamineOrder, RaceOrder, TimedFile, fitting, session_contender, types_of
from intact.profiling.profile import NodeTime
from intact.profiling.timing import WARM_UP, race
from intact.runtime import ort_cpu

PROFILED_RUNS = 10

Rows = list[dict[str, np.ndarray]]


def examine(request: ExamineOrder) -> Examined:
    """The peak memory of loading and running `model` on the first row of `inputs`, and its nodes with their times."""
    model, threads, rows = request["model"], request["threads"], list(sample_files.each(request))
    before = peak_bytes()
    run = _contender(model, rows, threads)
    for number in range(WARM_UP):
        run(number)
    peak = peak_bytes()
    del run
    nodes = _session_nodes(model, rows, threads) if model["timer"] is None else _layers(model, rows)
    used = None if peak is None or before is None else peak - before
    return {"peak_bytes": peak, "used_bytes": used, "nodes": [astuple(node) for node in nodes]}


def race_models(request: RaceOrder) -> dict[str, list[list[float]]]:
    """Seconds of each of `models` in each round."""
    rows, threads = list(sample_files.each(request)), request["threads"]
    contenders = [_contender(model, rows, threads) for model in request["models"]]
    return {"times": race(contenders, request["rounds"]).tolist()}


def peak_bytes() -> int | None:
    """The most memory that this process has held so far, or None where the system does not say.

    `getrusage` would count what the process that started this one held.
    """
    if sys.platform != "linux":
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) * 1024 if found else None


def _contender(file: TimedFile, rows: Rows, threads: int) -> Callable[[int], object]:
    path = Path(file["path"])
    if file["timer"] is None:
        return session_contender(path, rows, threads)
    model = _opened(file, profile=False)
    feeds = [fitting(model.inputs, row, path) for row in rows]
    return lambda number: model.run(feeds[number % len(feeds)])


def _opened(file: TimedFile, *, profile: bool) -> TimedModel:
    """A model in the runtime that a backend's timer names."""
    timer = file["timer"]
    assert timer is not None, "a model without a timer runs in ONNX Runtime"
    module = importlib.import_module(timer["module"])
    model: TimedModel = module.opened(file["path"], timer["order"], profile=profile)
    return model


def _session_nodes(file: TimedFile, rows: Rows, threads: int) -> list[NodeTime]:
    path = Path(file["path"])
    with scratch.folder("profile") as folder:
        session = ort_cpu.Session(path, optimize=True, threads=threads, profile=Path(folder, "record"))
        feeds = fitting(types_of(session), rows[0], path)
        for _ in range(WARM_UP + PROFILED_RUNS):
            session.run(feeds)
        return profile.read_profile(session.end_profile(), skip=WARM_UP)


def _layers(file: TimedFile, rows: Rows) -> list[NodeTime]:
    model = _opened(file, profile=True)
    feeds = fitting(model.inputs, rows[0], Path(file["path"]))
    found = model.layer_times(feeds, warm_up=WARM_UP, runs=PROFILED_RUNS)
    return [NodeTime(name, kind, median(times)) for (name, kind), times in found.items()]
