"""Models beside each other, on ONNX Runtime's CPU provider and in others: latency, memory, what takes the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from intact.backends import compiling, sample_files
from intact.backends.base import Timer
from intact.backends.sample_files import SamplesOrder
from intact.data import Feeds
from intact.errors import ModelError, SettingsError
from intact.model import io
from intact.profiling import profile
from intact.profiling.profile import Blame, NodeTime, OpTime
from intact.profiling.timing import WARM_UP, Latency, latencies, race
from intact.records import dataclass
from intact.runtime import ort_cpu, process

_TYPES = {"float": "float32", "double": "float64"}
_SECONDS_FOR_ONE = 1800.0


@dataclass(frozen=True, slots=True)
class Performance:
    """One model: `peak_bytes` of its process and `bytes` of its files, `nodes` and `ops` as they ran, slowest first.

    `blame` is the work that takes longer than in the first model, where this one is slower.
    """

    path: str
    runtime: str
    bytes: int
    latency: Latency
    peak_bytes: int | None
    used_bytes: int | None
    ops: tuple[OpTime, ...]
    nodes: tuple[NodeTime, ...]
    blame: tuple[Blame, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Models that were timed together: how, and what was found about each."""

    runtime: str
    threads: int
    warm_up: int
    rounds: int
    models: tuple[Performance, ...]


class TimerOrder(TypedDict):
    """A runtime to time a model in: the module that opens the model, and what it is told."""

    module: str
    order: dict[str, object]


class TimedFile(TypedDict):
    """A model to time; without a timer it runs in ONNX Runtime."""

    path: str
    timer: TimerOrder | None


class RaceOrder(SamplesOrder):
    """An order to time models in turns."""

    models: list[TimedFile]
    threads: int
    rounds: int | None


class ExamineOrder(SamplesOrder):
    """An order to measure the memory and the nodes of one model."""

    model: TimedFile
    threads: int


class Examined(TypedDict):
    """The memory of one model, None where the system does not say, and the times of its nodes."""

    peak_bytes: int | None
    used_bytes: int | None
    nodes: list[tuple[str, str, float]]


def measure(
    paths: Sequence[Path],
    rows: Sequence[Feeds],
    *,
    plugins: Mapping[Path, Timer] | None = None,
    threads: int = 0,
    rounds: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Measurement:
    """Time these models on the same rows; `threads` of 0 leaves their number to the runtime.

    Those in `plugins` run in the runtimes given there, the others in ONNX Runtime.
    """
    within = plugins or {}
    for path in (path for path in paths if path not in within):
        refuse_compiled(path)
    times = time_models(paths, rows, plugins=plugins, threads=threads, rounds=rounds, advance=advance)
    examined = [_examine(path, rows[0], within.get(path), threads) for path in paths]
    ran = [[NodeTime(*node) for node in found["nodes"]] for found in examined]
    models = []
    for path, latency, found, nodes in zip(paths, latencies(times), examined, ran, strict=True):
        memory = (found["peak_bytes"], found["used_bytes"])
        ops = profile.by_op(nodes)
        slower = profile.blame(profile.by_op(ran[0]), ops) if latency.is_slower else ()
        size = sum(file.stat().st_size for file in ([path] if path in within else io.files_of(path)))
        slowest = tuple(sorted(nodes, key=lambda node: -node.seconds))
        runtime = _runtime(within.get(path), threads)
        models.append(Performance(str(path), runtime, size, latency, *memory, ops, slowest, slower))
    runtimes = dict.fromkeys(model.runtime for model in models)
    return Measurement("; ".join(runtimes), threads, WARM_UP, len(times), tuple(models))


def time_models(
    paths: Sequence[Path],
    rows: Sequence[Feeds],
    *,
    plugins: Mapping[Path, Timer] | None = None,
    threads: int = 0,
    rounds: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Seconds of each model (columns) in each round (rows); models take turns on the same rows.

    Where another runtime takes part all of them run in a child process, so that its death is not ours; it does not
    tell of single rounds.
    """
    if not plugins:
        return race([session_contender(path, rows, threads) for path in paths], rounds, advance=advance)
    files = [_file(path, plugins.get(path), threads) for path in paths]
    with sample_files.sent(rows) as held:
        order: RaceOrder = {"models": files, "threads": threads, "rounds": rounds, **held}
        return np.array(_call("race_models", order)["times"])


def refuse_compiled(path: Path) -> None:
    """Raise for a model that runs in a simulator here: what that takes says nothing about the device."""
    if compiling.is_compiled(io.load(path)):
        raise SettingsError(
            "S136",
            f"{path} is compiled for an NPU, and runs here in a simulator: its time is not latency",
            allowed="models that ONNX Runtime runs on this CPU",
            fix="time it on the device; intact analyze says what of a model is on the NPU",
        )


def untimed(path: Path, why: str) -> SettingsError:
    """The refusal to time a compiled model, with the reason."""
    return SettingsError(
        "S136",
        f"{path} is compiled for an NPU: {why}",
        allowed="models that run on this machine as they will be deployed",
        fix="time it on the device; intact analyze says what of a model is on the NPU",
    )


def session_contender(path: Path, rows: Sequence[Feeds], threads: int) -> Callable[[int], object]:
    """A model in ONNX Runtime, ready to run a row by its number."""
    session = ort_cpu.Session(path, optimize=True, threads=threads)
    feeds = [fitting(types_of(session), row, path) for row in rows]
    return lambda number: session.run(feeds[number % len(feeds)])


def fitting(ports: Mapping[str, DTypeLike], row: Feeds, path: Path) -> Feeds:
    """A row in the types that a model takes: a model with integer inputs is timed on the same values, cast."""
    missing = [name for name in ports if name not in row]
    if missing:
        raise ModelError(
            "M170", f"{path}: the first model has no input {missing[0]!r}", allowed=", ".join(row), fix="time it alone"
        )
    return {name: row[name].astype(dtype, copy=False) for name, dtype in ports.items()}


def types_of(session: ort_cpu.Session) -> dict[str, str]:
    """The numpy types of a model's inputs, from ONNX Runtime's `tensor(float)`."""
    names = {port.name: port.type.removeprefix("tensor(").removesuffix(")") for port in session.inputs}
    return {port: _TYPES.get(name, name) for port, name in names.items()}


def _file(path: Path, timer: Timer | None, threads: int) -> TimedFile:
    told: TimerOrder | None = None if timer is None else {"module": timer.module, "order": timer.order(threads)}
    return {"path": str(path.absolute()), "timer": told}


def _runtime(timer: Timer | None, threads: int) -> str:
    return f"onnxruntime {ort_cpu.version()}, CPU" if timer is None else timer.runtime(threads)


def _examine(path: Path, row: Feeds, timer: Timer | None, threads: int) -> Examined:
    """The memory and the nodes of one model, from a process of its own."""
    with sample_files.sent([row]) as held:
        order: ExamineOrder = {"model": _file(path, timer, threads), "threads": threads, **held}
        found: Examined = _call("examine", order)
    return found


def _call(job: str, order: SamplesOrder) -> Any:
    return process.call(f"intact.profiling.perf_job:{job}", order, timeout=_SECONDS_FOR_ONE).result
