"""Models in a process of their own, so that memory is theirs and a vendor's death not ours; `measure` calls this."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from intact.profiling import profile
from intact.profiling.measure import fitting, session_contender, types_of
from intact.profiling.profile import NodeTime
from intact.profiling.timing import WARM_UP, race
from intact.runtime import ort_cpu

PROFILED_RUNS = 10

Rows = list[dict[str, np.ndarray]]


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """The peak memory of loading and running `model` on the first row of `inputs`, and its nodes with their times."""
    path, plugin = Path(request["model"]), request["plugin"]
    rows = _rows(request)
    before = peak_bytes()
    run = _contender(path, rows, plugin, request["threads"])
    for number in range(WARM_UP):
        run(number)
    peak = peak_bytes()
    del run
    nodes = _session_nodes(path, rows, request["threads"]) if plugin is None else _openvino_nodes(path, rows, plugin)
    used = None if peak is None or before is None else peak - before
    return {"peak_bytes": peak, "used_bytes": used, "nodes": [asdict(node) for node in nodes]}


def race_models(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each of `models` in each round."""
    rows, threads = _rows(request), request["threads"]
    contenders = [_contender(Path(model["path"]), rows, model["plugin"], threads) for model in request["models"]]
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


def _contender(path: Path, rows: Rows, plugin: dict[str, Any] | None, threads: int) -> Callable[[int], object]:
    if plugin is None:
        return session_contender(path, rows, threads)
    from intact.backends.openvino import job as openvino

    compiled = openvino.load(str(path), plugin["device"], plugin["options"])
    feeds = [fitting(openvino.inputs(compiled), row, path) for row in rows]
    request = compiled.create_infer_request()
    # Without copies, as ONNX Runtime takes and gives arrays.
    return lambda number: request.infer(dict(feeds[number % len(feeds)]), share_inputs=True, share_outputs=True)


def _session_nodes(path: Path, rows: Rows, threads: int) -> list[NodeTime]:
    with tempfile.TemporaryDirectory(prefix="intact-profile-") as folder:
        session = ort_cpu.Session(path, optimize=True, threads=threads, profile=Path(folder, "record"))
        feeds = fitting(types_of(session), rows[0], path)
        for _ in range(WARM_UP + PROFILED_RUNS):
            session.run(feeds)
        return profile.read_profile(session.end_profile(), skip=WARM_UP)


def _openvino_nodes(path: Path, rows: Rows, plugin: dict[str, Any]) -> list[NodeTime]:
    from intact.backends.openvino import job as openvino

    compiled = openvino.load(str(path), plugin["device"], {**plugin["options"], "PERF_COUNT": "YES"})
    feeds = fitting(openvino.inputs(compiled), rows[0], path)
    found = openvino.layer_times(compiled, feeds, warm_up=WARM_UP, runs=PROFILED_RUNS)
    return [NodeTime(name, kind, median(times)) for (name, kind), times in found.items()]
