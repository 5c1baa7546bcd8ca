"""Compile a model for a device, and run, load or adopt what was compiled, through the device's backend."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.backends import installed
from intact.backends.base import Compiled as Compiled
from intact.backends.base import Device as Device
from intact.backends.base import Step
from intact.errors import ModelError
from intact.model import context_binaries
from intact.results import PlacedNode, Placement

MODEL = "model.onnx"
# What a build writes itself into the folder that a binary is copied to.
_TAKEN = (MODEL, "manifest.json", "report.html")


def compile(model: ir.Model, device: Device, folder: Path, *, on_cpu: Mapping[str, str] | None = None) -> Compiled:
    """Compile `model` for `device` into `folder`, as model.onnx and what belongs to it.

    `on_cpu` names nodes that are to stay on the CPU, each with the reason.
    """
    backend = installed.find(device.backend)
    folder.mkdir(parents=True, exist_ok=True)
    return backend.compile(model, device, folder, dict(on_cpu or {}))


def kept_off(model: ir.Model, backend: str, names: Collection[str]) -> ir.Model:
    """A form of `model` whose nodes with these names stay on the CPU, though the device takes them."""
    return installed.find(backend).kept_off(model, names) if names else model


def check(backend: str, ep_options: Mapping[str, str]) -> None:
    """Refuse options that the toolchain of `backend` does not take, as far as it tells without a model."""
    installed.find(backend).check(ep_options)


def run(path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device) -> list[dict[str, np.ndarray]]:
    """The outputs of the compiled model at `path` as the device, or its simulator, computes them."""
    return installed.find(device.backend).run(path, samples, device)


def opened(path: Path, device: Device) -> AbstractContextManager[Step]:
    """The compiled model at `path` on the device, or its simulator, for one sample after another."""
    return installed.find(device.backend).opened(path, device)


def load(path: Path, device: Device) -> None:
    """Refuse a compiled model that its device's provider does not load, in a process of its own."""
    installed.find(device.backend).load(path, device)


def is_compiled(model: ir.Model) -> bool:
    """True if a model holds what a vendor's compiler made of one."""
    return any(node.op_type == "EPContext" for node in model.graph)


def adopt(path: Path, model: ir.Model, folder: Path) -> Compiled:
    """Copy a compiled model and the binaries that it names, which lie beside it, into `folder`."""
    contexts = context_binaries.contexts_of(model)
    binaries = context_binaries.find(path, model)
    elsewhere = [name for name in binaries if Path(name).name != name or name in _TAKEN]
    if elsewhere:
        raise ModelError(
            "M160",
            f"{path}: its binary {elsewhere[0]!r} cannot lie beside the model in an output folder",
            allowed=f"a name without a folder, and none of {', '.join(_TAKEN)}",
            fix="compile the model again under another name",
        )
    files = [Path(shutil.copyfile(path, folder / MODEL))]
    files += [Path(shutil.copyfile(file, folder / name)) for name, file in binaries.items()]
    on_npu = tuple(PlacedNode(node.name or "", node.op_type) for node in contexts)
    others = tuple(PlacedNode(n.name or "", n.op_type, "left out when the model was compiled") for n in model.graph)
    rest = tuple(node for node in others if node.op != "EPContext")
    return Compiled(files[0], tuple(files), Placement(on_npu, rest, len(contexts)), (), "compiled elsewhere")
