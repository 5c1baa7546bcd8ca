"""The Hexagon compiler and its simulator, called from this process and run in another."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intact.errors import NotAvailable, ToolchainError
from intact.vendor import process, qnn_log

PROVIDER = "QNNExecutionProvider"
PACKAGE = "onnxruntime-qnn"


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
    assigned: list[dict[str, Any]]
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
    path: Path, samples: Sequence[Mapping[str, np.ndarray]], chip: Chip, *, timeout: float
) -> list[dict[str, np.ndarray]]:
    """The outputs of the model at `path` in the simulator, one dictionary a sample.

    The model is an EPContext model with its binary beside it, or a QDQ model, which is compiled first.
    """
    names = list(samples[0]) if samples else []
    with tempfile.TemporaryDirectory(prefix="intact-samples-") as folder:
        inputs, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        arrays = {f"{row}.{index}": s[name] for row, s in enumerate(samples) for index, name in enumerate(names)}
        # mypy takes the keyword arguments of numpy's stub for its flags.
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        request = {
            "model": str(path.resolve()),
            "names": names,
            "samples": len(samples),
            "inputs": str(inputs),
            "outputs": str(outputs),
            "verbose": False,
        }
        produced = _call("run_samples", request, chip, timeout).result["names"]
        with np.load(outputs, allow_pickle=False) as results:
            rows = range(len(samples))
            return [{name: results[f"{row}.{index}"] for index, name in enumerate(produced)} for row in rows]


def environment() -> dict[str, str]:
    """Versions of what takes part, read from package metadata: no vendor library is loaded."""
    _require_package()
    qnn = importlib.metadata.distribution(PACKAGE)
    versions = {"onnxruntime": importlib.metadata.version("onnxruntime"), PACKAGE: qnn.version}
    build_info = Path(str(qnn.locate_file("onnxruntime_qnn/build_and_package_info.py")))
    sdk = re.search(r"qnn_version = '(.+)'", build_info.read_text(encoding="utf-8")) if build_info.is_file() else None
    return versions | ({"qairt": sdk[1]} if sdk else {})


def _call(job: str, request: Mapping[str, Any], chip: Chip, timeout: float) -> process.Reply:
    _require_package()
    order = {**request, "arch": chip.arch, "soc_id": chip.soc_id, "ep_options": dict(chip.ep_options)}
    limit = process.default_memory_limit()
    reply = process.call(f"intact.vendor.qnn:{job}", order, timeout=timeout, memory_limit=limit)
    if failure := qnn_log.startup_failure(reply.log):
        raise ToolchainError("E106", f"the QNN provider did not start: {failure}", fix="check --ep-option and --soc")
    if refused := qnn_log.refused_settings(reply.log):
        raise ToolchainError("E107", f"the QNN provider does not understand its settings: {'; '.join(refused)}")
    return reply


def _require_package() -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        raise NotAvailable(
            "E101", "the Hexagon compiler is not installed (package onnxruntime-qnn)", fix="pip install 'intact[qnn]'"
        )
