"""Compile a model for a device: one module per device, imported when it is asked for."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError, NotAvailable
from intact.results import PlacedNode, Placement


@dataclass(frozen=True, slots=True)
class Device:
    """What to compile for and to run on: a backend, its chip where that matters, and what its toolchain is told.

    `timeout` is in seconds; toolchains that run in this process ignore it.
    """

    backend: str
    timeout: float
    arch: int | None = None
    soc_id: int | None = None
    ep_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model as it is deployed: `path` to load, `files` that belong together, and where its nodes run.

    `runs` says whether this machine can run it, on the device or on a simulator of it. `made_from` are those of the
    files that the compiler read: the device does not need them, other tools do.
    """

    path: Path
    files: tuple[Path, ...]
    placement: Placement
    warnings: tuple[str, ...]
    runtime: str
    runs: bool = True
    made_from: tuple[Path, ...] = ()


def compile(model: ir.Model, device: Device, folder: Path, *, on_cpu: Mapping[str, str] | None = None) -> Compiled:
    """Compile `model` for `device` into `folder`, as model.onnx and what belongs to it.

    `on_cpu` names nodes that are to stay on the CPU, each with the reason.
    """
    backend = _backend(device.backend)
    folder.mkdir(parents=True, exist_ok=True)
    compiled: Compiled = backend.compile(model, device, folder, dict(on_cpu or {}))
    return compiled


def check(backend: str, ep_options: Mapping[str, str]) -> None:
    """Refuse options that the toolchain of `backend` does not take, as far as it tells without a model."""
    if backend == "openvino":
        _backend(backend).check(ep_options)


def run(path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device) -> list[dict[str, np.ndarray]]:
    """The outputs of the compiled model at `path` as the device, or its simulator, computes them."""
    outputs: list[dict[str, np.ndarray]] = _backend(device.backend).run(path, samples, device)
    return outputs


def load(path: Path, device: Device) -> None:
    """Refuse a compiled model that its device's provider does not load, in a process of its own."""
    _backend(device.backend).load(path, device)


def is_compiled(model: ir.Model) -> bool:
    """Whether a model holds what a vendor's compiler made of one."""
    return any(node.op_type == "EPContext" for node in model.graph)


def adopt(path: Path, model: ir.Model, folder: Path) -> Compiled:
    """Copy a compiled model and the binaries that it names, which lie beside it, into `folder`."""
    contexts = [node for node in model.graph if node.op_type == "EPContext"]
    names = dict.fromkeys(
        node.attributes.get_string("ep_cache_context", "")
        for node in contexts
        if node.attributes.get_int("embed_mode", 1) == 0
    )
    missing = [name for name in names if Path(name).name != name or not (path.parent / name).is_file()]
    if missing:
        raise ModelError("M160", f"{path}: its binary {missing[0]!r} does not lie beside it")
    files = [Path(shutil.copyfile(path, folder / "model.onnx"))]
    files += [Path(shutil.copyfile(path.parent / name, folder / name)) for name in names]
    on_npu = tuple(PlacedNode(node.name or "", node.op_type) for node in contexts)
    others = tuple(PlacedNode(n.name or "", n.op_type, "left out when the model was compiled") for n in model.graph)
    rest = tuple(node for node in others if node.op != "EPContext")
    return Compiled(files[0], tuple(files), Placement(on_npu, rest, len(contexts)), (), "compiled elsewhere")


def _backend(wanted: str) -> ModuleType:
    known = sorted(path.parent.name for path in Path(__file__).parent.glob("*/backend.py"))
    if wanted not in known:
        raise NotAvailable("E110", f"intact cannot compile for {wanted} yet", allowed=", ".join(known))
    return importlib.import_module(f"{__package__}.{wanted}.backend")
