"""The Hexagon compiler and its simulator, called from this process and run in another."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intact.backends.qnn import log as qnn_log
from intact.errors import NotAvailable, ToolchainError
from intact.runtime import pool, process
from intact.targets.provider_placement import AssignedNodes

PROVIDER = "QNNExecutionProvider"
PACKAGE = "onnxruntime-qnn"
INSTALL = "pip install 'intact[qnn]'"

# A simulator holds 261 MB for a CNN with a binary of 24 MB and 269 MB for an encoder of 35 MB, however many samples it
# runs (seen with onnxruntime-qnn 2.7.0); this leaves room for inputs and outputs.
_BYTES_OF_A_SIMULATOR = 512 << 20
_BYTES_FOR_EACH_OF_THE_BINARY = 4
# A simulator starts in half a second; with more samples than this, what it returns is the larger cost.
_MOST_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class Chip:
    """What to compile for or simulate: an architecture (73 is V73), a chip's id, and options of the provider."""

    arch: int | None = None
    soc_id: int | None = None
    ep_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One session with the compiler: what each provider got, or the error; `reasons` are by node name."""

    error: str | None
    assigned: list[AssignedNodes]
    reasons: dict[str, str]


def compile_context(
    folder: Path,
    model: str,
    context: str | None,
    chip: Chip,
    *,
    fallback: bool,
    pinned: bool = False,
    timeout: float,
) -> Attempt:
    """Compile `model` into the EPContext model `context`, both relative to `folder`.

    Without `context` nothing is written. With `fallback` nodes may stay on the CPU, and the reasons are read; with
    `pinned` those that are annotated so (see `pinning`) have to.
    """
    request = {
        "folder": str(folder),
        "model": model,
        "context": context,
        "fallback": fallback,
        "pinned": pinned,
        "verbose": fallback,
    }
    reply = _call("compile_context", request, chip, timeout)
    return Attempt(reply.result["error"], reply.result["assigned"], qnn_log.reasons(reply.log))


def run(
    path: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    chip: Chip,
    *,
    timeout: float,
    optimize: bool = True,
) -> list[dict[str, np.ndarray]]:
    """The outputs of the model at `path` in the simulator, one dictionary a sample, in their order.

    The model is an EPContext model with its binary beside it, or a QDQ model, which is compiled first: as ONNX Runtime
    optimizes it, or, as `compile_context` compiles it, as it stands. The simulator computes on one core, so that
    several of them share the samples.
    """
    workers = pool.workers(len(samples), _bytes_of_a_simulator(path))
    share = min(max(1, math.ceil(len(samples) / workers)), _MOST_SAMPLES)
    parts = [samples[start : start + share] for start in range(0, len(samples), share)]
    request = {"model": str(path.resolve()), "verbose": False, "optimize": optimize}
    jobs = (_running(request, part, chip, timeout) for part in parts)
    return [outputs for part in pool.in_order(jobs, workers) for outputs in part]


def load(path: Path, chip: Chip, *, timeout: float) -> None:
    """Raise unless the simulator loads the model at `path`; nothing is run."""
    _call("load_model", {"model": str(path.resolve()), "verbose": False}, chip, timeout)


def _bytes_of_a_simulator(path: Path) -> int:
    beside = sum(file.stat().st_size for file in (path, *path.parent.glob("*.bin")) if file.is_file())
    return _BYTES_OF_A_SIMULATOR + _BYTES_FOR_EACH_OF_THE_BINARY * beside


@contextmanager
def _running(
    model: Mapping[str, Any], samples: Sequence[Mapping[str, np.ndarray]], chip: Chip, timeout: float
) -> Iterator[Callable[[], list[dict[str, np.ndarray]]]]:
    """A simulator at work on these samples; the function that this gives waits for the outputs."""
    names = list(samples[0])
    with tempfile.TemporaryDirectory(prefix="intact-samples-") as folder:
        inputs, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        arrays = {f"{row}.{index}": s[name] for row, s in enumerate(samples) for index, name in enumerate(names)}
        # mypy takes the keyword arguments of numpy's stub for its flags.
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        request = {
            **model,
            "names": names,
            "samples": len(samples),
            "inputs": str(inputs),
            "outputs": str(outputs),
        }

        def wait() -> list[dict[str, np.ndarray]]:
            produced = _checked(reply()).result["names"]
            with np.load(outputs, allow_pickle=False) as results:
                rows = range(len(samples))
                return [{name: results[f"{row}.{index}"] for index, name in enumerate(produced)} for row in rows]

        with _started("run_samples", request, chip, timeout) as reply:
            yield wait


def environment() -> dict[str, str]:
    """Versions of what takes part, read from package metadata: no vendor library is loaded."""
    _require_package()
    qnn = importlib.metadata.distribution(PACKAGE)
    versions = {"onnxruntime": importlib.metadata.version("onnxruntime"), PACKAGE: qnn.version}
    build_info = Path(str(qnn.locate_file("onnxruntime_qnn/build_and_package_info.py")))
    sdk = re.search(r"qnn_version = '(.+)'", build_info.read_text(encoding="utf-8")) if build_info.is_file() else None
    return versions | ({"qairt": sdk[1]} if sdk else {})


def version() -> str:
    """The version of the compiler's package."""
    return environment()[PACKAGE]


def _call(job: str, request: Mapping[str, Any], chip: Chip, timeout: float) -> process.Reply:
    with _started(job, request, chip, timeout) as reply:
        return _checked(reply())


def _started(
    job: str, request: Mapping[str, Any], chip: Chip, timeout: float
) -> AbstractContextManager[Callable[[], process.Reply]]:
    _require_package()
    order = {**request, "arch": chip.arch, "soc_id": chip.soc_id, "ep_options": dict(chip.ep_options)}
    limit = process.default_memory_limit()
    return process.started(f"intact.backends.qnn.job:{job}", order, timeout=timeout, memory_limit=limit)


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
