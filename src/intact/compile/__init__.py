"""Compile a model for a device: one module per device, imported when it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx_ir as ir

from intact.errors import NotAvailable
from intact.results import Placement


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model as it is deployed: `path` to load, `files` that belong together, and where its nodes run."""

    path: Path
    files: tuple[Path, ...]
    placement: Placement
    warnings: tuple[str, ...]
    runtime: str


def compile(
    model: ir.Model,
    *,
    device: str,
    folder: Path,
    arch: int | None = None,
    soc_id: int | None = None,
    ep_options: Mapping[str, str] | None = None,
    on_cpu: Mapping[str, str] | None = None,
    timeout: float,
) -> Compiled:
    """Compile `model` for `device` into `folder`, as model.onnx and what belongs to it.

    `on_cpu` names nodes that are to stay on the CPU, each with the reason.
    """
    backend = _backend(device)
    folder.mkdir(parents=True, exist_ok=True)
    compiled: Compiled = backend.compile(
        model,
        folder=folder,
        arch=arch,
        soc_id=soc_id,
        ep_options=dict(ep_options or {}),
        on_cpu=dict(on_cpu or {}),
        timeout=timeout,
    )
    return compiled


def run(
    path: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    *,
    device: str,
    arch: int | None = None,
    soc_id: int | None = None,
    ep_options: Mapping[str, str] | None = None,
    timeout: float,
) -> list[dict[str, np.ndarray]]:
    """The outputs of the compiled model at `path` as the device, or its simulator, computes them."""
    outputs: list[dict[str, np.ndarray]] = _backend(device).run(
        path, samples, arch=arch, soc_id=soc_id, ep_options=dict(ep_options or {}), timeout=timeout
    )
    return outputs


def _backend(device: str) -> ModuleType:
    name = f"{__name__}.{device}"
    if importlib.util.find_spec(name) is None:
        raise NotAvailable("E110", f"intact cannot compile for {device} yet", allowed="cpu, qnn")
    return importlib.import_module(name)
