"""Rockchip's compiler and simulator, called from this process and run in another, by an interpreter of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from intact.backends import sample_files
from intact.backends.rknn import log as rknn_log
from intact.backends.rknn.log import CompilerReport
from intact.backends.rknn.standing import STANDING
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.backends.sample_files import SamplesOrder
from intact.errors import SettingsError
from intact.events import nothing
from intact.records import dataclass
from intact.runtime import pool, process, toolchains
from intact.runtime.toolchains import Toolchain

PACKAGE = TOOLCHAIN.package
_JOBS = "intact.backends.rknn.job"
# The toolkit with torch holds 700 MB before it has a model (seen with rknn-toolkit2 2.5.0).
_BYTES_OF_A_SIMULATOR = 1 << 30
_BYTES_FOR_EACH_OF_THE_MODEL = 8
# The simulator is started again, and the model built, for each part of the samples.
_LEAST_SAMPLES = 64

# Options of `RKNN.config` that say how a model is compiled and neither what of it nor into which numbers.
OPTIONS: Mapping[str, Callable[[str], object]] = {
    "optimization_level": int,
    "compress_weight": lambda text: _flag("compress_weight", text),
    "single_core_mode": lambda text: _flag("single_core_mode", text),
    "model_pruning": lambda text: _flag("model_pruning", text),
    "sparse_infer": lambda text: _flag("sparse_infer", text),
    "enable_flash_attention": lambda text: _flag("enable_flash_attention", text),
    "remove_reshape": lambda text: _flag("remove_reshape", text),
    "custom_string": str,
}


@dataclass(frozen=True, slots=True)
class Platform:
    """A chip as the toolkit names it, options of its compiler, and the toolkit itself where it is not the usual one."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    toolchain: str | None = None


class PlatformOrder(TypedDict):
    """The part of every order to the worker: a model, the chip and the compiler's options."""

    model: str
    platform: str
    options: dict[str, object]


class RknnOrder(PlatformOrder):
    """An order to compile; `rknn` is None where nothing is to be written."""

    rknn: str | None


class QuantizeOrder(RknnOrder, SamplesOrder):
    """An order to compile what the toolkit's own quantizer makes of a float model and samples."""


class SimulateOrder(PlatformOrder, SamplesOrder):
    """An order to run a model on samples."""


@dataclass(frozen=True, slots=True)
class CompiledRknn:
    """The result of compiling: the compiler's report, or the error."""

    error: str | None
    report: CompilerReport


def version(asked: str | None = None) -> str:
    """The version of the toolkit in its environment."""
    return toolkit(asked).version


def toolkit(asked: str | None = None) -> Toolchain:
    """The toolkit that the setting `toolchain` asks for, or the usual one."""
    return toolchains.chosen(TOOLCHAIN, asked) or toolchains.require(TOOLCHAIN)


def parsed(options: Mapping[str, str]) -> dict[str, object]:
    """Options of the compiler as it takes them; unknown ones and wrong values are refused."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise SettingsError("S215", f"option {unknown[0]}: the compiler takes none such", allowed=", ".join(OPTIONS))
    try:
        return {name: OPTIONS[name](text) for name, text in options.items()}
    except ValueError as error:
        raise SettingsError("S215", f"compiler options: {error}") from None


def compile_rknn(model: Path, rknn: Path | None, platform: Platform, *, timeout: float) -> CompiledRknn:
    """Compile the ONNX model at `model` and write the result to `rknn`; without `rknn` nothing is written."""
    order: RknnOrder = {**_order(model, platform), "rknn": None if rknn is None else str(rknn.resolve())}
    return _compiled("compile_model", order, platform, timeout)


def compile_quantized(
    model: Path, sample: Mapping[str, np.ndarray], platform: Platform, *, timeout: float
) -> CompiledRknn:
    """Compile the float ONNX model at `model` in the integers of the toolkit's own quantizer; nothing is written."""
    with sample_files.sent([sample]) as files:
        order: QuantizeOrder = {**_order(model, platform), **files, "rknn": None}
        return _compiled("compile_quantized", order, platform, timeout)


def _compiled(job: str, order: RknnOrder, platform: Platform, timeout: float) -> CompiledRknn:
    reply = STANDING.call(f"{_JOBS}:{job}", order, toolkit(platform.toolchain).python, timeout)
    report = rknn_log.report(reply.log)
    error = None if reply.result["compiled"] else reply.result["error"] or rknn_log.reason(reply.log)
    return CompiledRknn(error, report)


def run(
    model: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    outputs: Sequence[str],
    platform: Platform,
    *,
    timeout: float,
    done: Callable[[], None] = nothing,
) -> list[dict[str, np.ndarray]]:
    """The outputs of the ONNX model at `model` in the simulator, which compiles it first; one dictionary a sample.

    `done` is called for each.
    """
    size = _BYTES_OF_A_SIMULATOR + _BYTES_FOR_EACH_OF_THE_MODEL * model.stat().st_size
    workers = pool.workers(math.ceil(len(samples) / _LEAST_SAMPLES), size)
    share = max(1, math.ceil(len(samples) / workers))
    parts = [samples[start : start + share] for start in range(0, len(samples), share)]
    count, job, python = sample_files.SamplesRun(done), f"{_JOBS}:run_samples", toolkit(platform.toolchain).python

    def begin(order: SimulateOrder) -> AbstractContextManager[process.Awaited]:
        """In the process that stays, which may have compiled the model just now, or each part in one of its own."""
        if len(parts) == 1:
            return nullcontext(partial(STANDING.call, job, order, python, timeout))
        # The libraries reserve more address space than they ever use: no limit is set to it.
        return process.started(job, order, timeout=timeout, python=python)

    jobs = (_running(_order(model, platform), part, outputs, begin, count) for part in parts)
    return [found for part in pool.in_order(jobs, workers) for found in part]


@contextmanager
def _running(
    given: PlatformOrder,
    samples: Sequence[Mapping[str, np.ndarray]],
    outputs: Sequence[str],
    begin: Callable[[SimulateOrder], AbstractContextManager[process.Awaited]],
    run: sample_files.SamplesRun,
) -> Iterator[Callable[[], list[dict[str, np.ndarray]]]]:
    """A run of samples under way, and the function that waits for its outputs."""
    with sample_files.sent(samples) as files:
        order: SimulateOrder = {**given, **files}
        run.add(files)
        with begin(order) as answer:

            def results() -> list[dict[str, np.ndarray]]:
                count = answer(run.look).result["outputs"]
                run.look()
                return _received(files, count, outputs)

            yield results


def _received(files: SamplesOrder, count: int, outputs: Sequence[str]) -> list[dict[str, np.ndarray]]:
    assert count == len(outputs), f"the simulator has {count} outputs, not {', '.join(outputs)}"
    return sample_files.received(files, outputs)


def _order(model: Path, platform: Platform) -> PlatformOrder:
    return {"model": str(model.resolve()), "platform": platform.name, "options": dict(platform.options)}


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"{name}={text}: not among true, false")
    return text.lower() in ("true", "1")
