"""The Hexagon compiler and its simulator, called from this process and run in another."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import TypedDict

import numpy as np

from intact.backends import sample_files
from intact.backends.base import Step
from intact.backends.qnn import log as qnn_log
from intact.backends.qnn.toolchain import TOOLCHAIN
from intact.backends.sample_files import SamplesOrder
from intact.errors import NotAvailable, ToolchainError
from intact.events import nothing
from intact.records import dataclass
from intact.runtime import pinning, pool, process, toolchains
from intact.runtime.toolchains import Toolchain
from intact.targets.provider_placement import AssignedNodes

PROVIDER = "QNNExecutionProvider"
PACKAGE = TOOLCHAIN.package
INSTALL = "pip install 'intact[qnn]'"

_JOBS = "intact.backends.qnn.job"

# A simulator holds 261 MB for a CNN with a binary of 24 MB and 269 MB for an encoder of 35 MB, however many samples it
# runs (seen with onnxruntime-qnn 2.7.0); this leaves room for inputs and outputs.
_BYTES_OF_A_SIMULATOR = 512 << 20
_BYTES_FOR_EACH_OF_THE_BINARY = 4
# A simulator starts in half a second; with more samples than this, what it returns is the larger cost.
_MOST_SAMPLES = 96


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip to compile for or simulate: an architecture (73 is V73), its id, and options of the provider.

    `toolchain` is another version of the library than the one beside intact, or a folder that holds it.
    """

    arch: int | None = None
    soc_id: int | None = None
    ep_options: Mapping[str, str] = field(default_factory=dict)
    toolchain: str | None = None

    @property
    def library(self) -> Toolchain | None:
        """The library in an environment of its own; None for the one beside intact."""
        return toolchains.chosen(TOOLCHAIN, self.toolchain)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One session with the compiler: what each provider got, or the error; `reasons` are by node name."""

    error: str | None
    assigned: list[AssignedNodes]
    reasons: dict[str, str]


class LeftToCpu(Enum):
    """The nodes that may stay on the CPU: none, those that the compiler refuses, or also annotated ones (`pinning`)."""

    NOTHING = "nothing"
    REFUSED = "refused"
    PINNED = "pinned"


class ChipOrder(TypedDict):
    """The part of every order to the worker: the chip, the provider's options, and how much is logged."""

    arch: int | None
    soc_id: int | None
    ep_options: dict[str, str]
    verbose: bool


class CompileOrder(ChipOrder):
    """An order to compile: `context` is None where nothing is to be written, `settings` are the session's."""

    folder: str
    model: str
    context: str | None
    fallback: bool
    settings: dict[str, str]


class LoadOrder(ChipOrder):
    """An order to load a model in the simulator."""

    model: str


class SimulatorOrder(LoadOrder):
    """An order to load a model as ONNX Runtime optimizes it, or as it stands; on one core, where it names one."""

    optimize: bool
    core: int | None


class RunOrder(SimulatorOrder, SamplesOrder):
    """An order to run a model on samples."""


class CompileReply(TypedDict):
    """The answer to an order to compile."""

    error: str | None
    assigned: list[AssignedNodes]


def compile_context(
    folder: Path, model: str, context: str | None, chip: Chip, *, rest: LeftToCpu, timeout: float
) -> Attempt:
    """Compile `model` into the EPContext model `context`, both relative to `folder`.

    Without `context` nothing is written. Where nodes may stay on the CPU, the reasons are read.
    """
    fallback = rest is not LeftToCpu.NOTHING
    order: CompileOrder = {
        "folder": str(folder),
        "model": model,
        "context": context,
        "fallback": fallback,
        "settings": dict([pinning.SETTING]) if rest is LeftToCpu.PINNED else {},
        **_order(chip, verbose=fallback),
    }
    reply = _call("compile_context", order, chip, timeout)
    return Attempt(reply.result["error"], reply.result["assigned"], qnn_log.reasons(reply.log))


def run(
    path: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    chip: Chip,
    *,
    timeout: float,
    optimize: bool = True,
    done: Callable[[], None] = nothing,
) -> list[dict[str, np.ndarray]]:
    """The outputs of the model at `path` in the simulator, one dictionary a sample, in their order.

    The model is an EPContext model with its binary beside it, or a QDQ model, which is compiled first: as ONNX Runtime
    optimizes it, or, as `compile_context` compiles it, as it stands. The simulator computes on one core, so that
    several of them share the samples. `done` is called for each.
    """
    workers = pool.workers(len(samples), _bytes_of_a_simulator(path))
    share = min(max(1, math.ceil(len(samples) / workers)), _MOST_SAMPLES)
    parts = [samples[start : start + share] for start in range(0, len(samples), share)]
    model: LoadOrder = {"model": str(path.resolve()), **_order(chip)}
    cores, count = _cores(workers), sample_files.SamplesRun(done)
    jobs = (
        _running({**model, "optimize": optimize, "core": cores[number % workers]}, part, chip, timeout, count)
        for number, part in enumerate(parts)
    )
    return [outputs for part in pool.in_order(jobs, workers) for outputs in part]


@contextmanager
def opened(path: Path, chip: Chip, *, timeout: float) -> Iterator[Step]:
    """The model at `path` in one simulator that runs a sample at a time."""
    model: SimulatorOrder = {"model": str(path.resolve()), **_order(chip), "optimize": True, "core": None}
    limit = process.default_memory_limit()
    with process.staying(timeout=timeout, memory_limit=limit, python=_interpreter(chip)) as call:

        def step(sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            with sample_files.sent([sample]) as files:
                order: RunOrder = {**model, **files}
                reply = _checked(call(f"{_JOBS}:run_samples", order))
                return sample_files.received(files, reply.result["names"])[0]

        yield step


def load(path: Path, chip: Chip, *, timeout: float) -> None:
    """Raise unless the simulator loads the model at `path`; nothing is run."""
    order: LoadOrder = {"model": str(path.resolve()), **_order(chip)}
    _call("load_model", order, chip, timeout)


def _bytes_of_a_simulator(path: Path) -> int:
    beside = sum(file.stat().st_size for file in (path, *path.parent.glob("*.bin")) if file.is_file())
    return _BYTES_OF_A_SIMULATOR + _BYTES_FOR_EACH_OF_THE_BINARY * beside


def _cores(workers: int) -> list[int | None]:
    """A core for each of the simulators that run at once, if together they take all: else the system chooses.

    The threads of a simulator take turns and wait actively: spread over cores they take a third more time of them.
    """
    ours = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    return list(ours) if len(ours) == workers else [None] * workers


@contextmanager
def _running(
    model: SimulatorOrder,
    samples: Sequence[Mapping[str, np.ndarray]],
    chip: Chip,
    timeout: float,
    count: sample_files.SamplesRun,
) -> Iterator[Callable[[], list[dict[str, np.ndarray]]]]:
    """A simulator at work on these samples; the function that this gives waits for the outputs."""
    with sample_files.sent(samples) as files:
        order: RunOrder = {**model, **files}
        count.add(files)

        def wait() -> list[dict[str, np.ndarray]]:
            answer = _checked(reply(count.look))
            count.look()
            return sample_files.received(files, answer.result["names"])

        with _started("run_samples", order, chip, timeout) as reply:
            yield wait


def environment() -> dict[str, str]:
    """Versions of what takes part, read from package metadata: no vendor library is loaded."""
    _require_package()
    qnn = importlib.metadata.distribution(PACKAGE)
    versions = {"onnxruntime": importlib.metadata.version("onnxruntime"), PACKAGE: qnn.version}
    build_info = Path(str(qnn.locate_file("onnxruntime_qnn/build_and_package_info.py")))
    sdk = re.search(r"qnn_version = '(.+)'", build_info.read_text(encoding="utf-8")) if build_info.is_file() else None
    return versions | ({"qairt": sdk[1]} if sdk else {})


def version(chip: Chip | None = None) -> str:
    """The version of the compiler's package."""
    library = (chip or Chip()).library
    return environment()[PACKAGE] if library is None else library.version


def _order(chip: Chip, *, verbose: bool = False) -> ChipOrder:
    return {"arch": chip.arch, "soc_id": chip.soc_id, "ep_options": dict(chip.ep_options), "verbose": verbose}


def _call(job: str, order: ChipOrder, chip: Chip, timeout: float) -> process.Reply:
    with _started(job, order, chip, timeout) as reply:
        return _checked(reply())


def _started(job: str, order: ChipOrder, chip: Chip, timeout: float) -> AbstractContextManager[process.Awaited]:
    limit = process.default_memory_limit()
    return process.started(f"{_JOBS}:{job}", order, timeout=timeout, memory_limit=limit, python=_interpreter(chip))


def _interpreter(chip: Chip) -> process.Interpreter | None:
    """The Python of the chip's library; None for ours, which has to have the package."""
    library = chip.library
    if library is None:
        _require_package()
    return None if library is None else library.python


def _checked(reply: process.Reply) -> process.Reply:
    """A reply of a provider that started, and with the settings that it was given."""
    if failure := qnn_log.startup_failure(reply.log):
        raise ToolchainError("E106", f"the QNN provider did not start: {failure}", fix="check --ep-option and --soc")
    if refused := qnn_log.refused_settings(reply.log):
        raise ToolchainError("E107", f"the QNN provider does not understand its settings: {'; '.join(refused)}")
    return reply


def _require_package() -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        raise NotAvailable("E101", "the Hexagon compiler is not installed (package onnxruntime-qnn)", fix=INSTALL)
