"""Compile a model for a device, and run, load or adopt what was compiled, through the device's backend."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.backends import installed
from intact.backends.base import Compiled as Compiled
from intact.backends.base import Device as Device
from intact.errors import ModelError
from intact.results import PlacedNode, Placement


def compile(model: ir.Model, device: Device, folder: Path, *, on_cpu: Mapping[str, str] | None = None) -> Compiled:
    """Compile `model` for `device` into `folder`, as model.onnx and what belongs to it.

    `on_cpu` names nodes that are to stay on the CPU, each with the reason.
    """
    backend = installed.find(device.backend)
    folder.mkdir(parents=True, exist_ok=True)
    return backend.compile(model, device, folder, dict(on_cpu or {}))


def check(backend: str, ep_options: Mapping[str, str]) -> None:
    """Refuse options that the toolchain of `backend` does not take, as far as it tells without a model."""
    installed.find(backend).check(ep_options)


def run(path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device) -> list[dict[str, np.ndarray]]:
    """The outputs of the compiled model at `path` as the device, or its simulator, computes them."""
    return installed.find(device.backend).run(path, samples, device)


def load(path: Path, device: Device) -> None:
    """Refuse a compiled model that its device's provider does not load, in a process of its own."""
    installed.find(device.backend).load(path, device)


def is_compiled(model: ir.Model) -> bool:
    """True if a model holds what a vendor's compiler made of one."""
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
