"""Models that nobody vouches for, looked at and tried out before this process runs them.

Where shapes tell all that a run makes, their sum decides. Where sizes are computed, or a Loop goes on for as long as it
likes, the model first runs once on made-up inputs in a child process with limits.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import onnx_ir as ir

from intact import data
from intact.backends import compiling, installed
from intact.errors import DataError, ModelError, SettingsError, ToolchainError, about
from intact.model import footprint, io, normalize
from intact.model.footprint import Footprint
from intact.runtime import ort_cpu, process

# Seconds of a processor: what a model of a few bytes may take, and one more for each of so many bytes.
LEAST_SECONDS = 3
BYTES_A_SECOND = 1 << 20
# Seconds on the clock for each of those: a busy machine takes its time; where nothing else limits, it is the limit.
PATIENCE = 100 if sys.platform == "linux" else 3

OUT_OF_TIME = "SIGXCPU"

_NO_MEMORY = re.compile(r"bfc_arena|bad_alloc|[Ff]ailed to allocate|MemoryError")


class TrialOrder(TypedDict):
    """A model file to run once, the sizes of its free dimensions, and its limits."""

    path: str
    dims: dict[str, int]
    memory: int
    seconds: int


def refuse_bombs(
    path: Path, model: ir.Model, dims: Mapping[str, int] | None = None, *, unclaimed: bool = False
) -> None:
    """Refuse the model of a file if a run takes far more memory or time than anything of its size has a use for.

    `unclaimed` says that the file claims nothing about inner shapes.
    """
    if os.environ.get(footprint.TRUST) == "1" or compiling.is_compiled(model):
        return
    found = _looked_at(footprint.of(model, unclaimed=unclaimed))
    footprint.check(found)
    if not found.is_known:
        _try_out(path, dims or {}, found.model)


def check_files(*paths: Path) -> None:
    """Refuse model files that ONNX Runtime reads, and that `refuse_bombs` refuses."""
    for path in (path for path in paths if installed.of_file(path) is None):
        with about(path):
            refuse_bombs(path, io.load(path))


def _looked_at(found: Footprint) -> Footprint:
    """The sizes of all results, as ONNX infers them, or else ONNX Runtime, which knows operators of its own."""
    names = [value.name or "" for value in found.unknown if value.graph is found.model.graph]
    if not names or found.loops:
        return found
    try:
        ports = ort_cpu.Session(found.model, outputs=names).outputs
    except ModelError:
        return found
    return footprint.completed(found, {port.name: port.shape for port in ports})


def _try_out(path: Path, dims: Mapping[str, int], model: ir.Model) -> None:
    """Run the model of a file once in a child process; refuse it if that goes beyond the limits."""
    memory = footprint.allowed_bytes(model)
    seconds = LEAST_SECONDS + memory // footprint.MOST_GROWTH // BYTES_A_SECOND
    order: TrialOrder = {"path": str(path.absolute()), "dims": dict(dims), "memory": memory, "seconds": seconds}
    try:
        stopped = process.call("intact.pipeline.trial:run", order, timeout=PATIENCE * seconds).result["stopped"]
    except ToolchainError as death:
        told = death.message.partition("\n")[0].partition(": ")[2]
        stopped = "it does not end" if death.code == process.LATE or OUT_OF_TIME in told else told
    if stopped:
        raise ModelError(
            "M135",
            f"a trial run on made-up inputs was stopped: {stopped}",
            allowed=f"{footprint.gigabytes(memory)} for its tensors and {seconds} seconds, for a model of its size",
            fix="look for a Loop that does not end, and for sizes that are computed wrongly; if the model is meant to "
            f"be so, {footprint.TRUST}=1 lifts the limits",
        )


def run(order: TrialOrder) -> dict[str, str | None]:
    """Job: run a model once without and once with optimizations, within limits; tell why it had to stop for them."""
    ort_cpu.use_threads(1)
    given = io.load(order["path"])
    _limit(order["memory"], order["seconds"])
    try:
        model = normalize.normalize(given, dims=order["dims"])
        row = next(iter(data.load(model, None, samples=1).calibration))
        ort_cpu.Session(model).run(row)
        ort_cpu.Session(model, optimize=True).run(row)
    except MemoryError:
        return {"stopped": "out of memory"}
    except (ModelError, DataError, SettingsError) as problem:
        # Any other reason why it does not run is reported by the stage that runs it.
        told = problem.message.partition(" Status Message")[0]
        return {"stopped": f"out of memory: {told}" if _NO_MEMORY.search(problem.message) else None}
    return {"stopped": None}


def _limit(memory: int, seconds: int) -> None:
    """Give this process so much more memory and processor time than it has used."""
    if sys.platform != "linux":
        return
    import resource

    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1
    for what, most in (
        (resource.RLIMIT_AS, used + memory),
        (resource.RLIMIT_CPU, spent + seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
