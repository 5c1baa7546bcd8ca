"""For the CPU: a model file that ONNX Runtime loads with all its optimizations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.backends.base import Compiled, Device
from intact.errors import SettingsError
from intact.model import io
from intact.results import PlacedNode, Placement
from intact.runtime import loads, ort_cpu
from intact.targets.provider_placement import compute_nodes, node_ops

REASON = "the target is the CPU"


def compile(model: ir.Model, device: Device, folder: Path, on_cpu: Mapping[str, str]) -> Compiled:
    """Save `model` and make sure that ONNX Runtime takes it."""
    if device.ep_options:
        raise SettingsError("S127", f"provider options {', '.join(device.ep_options)}: the CPU provider has none")
    files = io.save(model, folder / "model.onnx")
    load(files[0], device)
    nodes = [PlacedNode(name, op, REASON) for name, op in node_ops(model).items()]
    placement = Placement(npu_nodes=(), cpu_nodes=tuple(compute_nodes(nodes)), partitions=0)
    return Compiled(files[0], files, placement, warnings=(), runtime=f"onnxruntime {ort.__version__}")


def load(path: Path, device: Device) -> None:
    """Refuse a model that ONNX Runtime does not load with all its optimizations, or that ends its process."""
    loads.check(path, timeout=device.timeout)


def run(path: Path, samples: Sequence[Mapping[str, np.ndarray]], device: Device) -> list[dict[str, np.ndarray]]:
    """The outputs of the model as it will be deployed: with all optimizations."""
    session = ort_cpu.Session(path, optimize=True)
    return [session.run(sample) for sample in samples]
