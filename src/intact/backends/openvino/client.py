"""OpenVINO, called from this process and run in another."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from intact.backends import sample_files
from intact.backends.sample_files import SamplesOrder
from intact.errors import NotAvailable
from intact.events import nothing
from intact.records import dataclass
from intact.runtime import process

PACKAGE = "openvino"
INSTALL = "pip install 'intact[openvino]'"
BLOB = ".blob"
_SECONDS_TO_START = 120.0
_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Plugin:
    """A device to compile for as OpenVINO names it, and options of its plugin.

    Unless `INFERENCE_PRECISION_HINT` says otherwise, the CPU computes what is left in float in bf16 where it can.
    """

    device: str = "CPU"
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join([self.device, *(f"{name}={value}" for name, value in self.options.items())])


CPU = Plugin()

# Probed (openvino 2026.4.1): left to itself, the CPU plugin computes floats in bf16 where the machine can, and rounds
# the activations beside packed weights to 8 bits. Both cost accuracy that nobody asked for: 32 dB in place of 118 on a
# float transformer, and 5 dB of weights of 8 bits. A blob holds neither choice: it is loaded with the same options.
ACCURATE = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def plugin_of(options: Mapping[str, str]) -> Plugin:
    """The plugin that `device` among a user's options names; the others are its own, over those that keep accuracy."""
    device = options.get("device", CPU.device)
    given = {name: value for name, value in options.items() if name != "device"}
    return Plugin(device, {**(ACCURATE if device == CPU.device else {}), **given})


@dataclass(frozen=True, slots=True)
class PluginLayer:
    """A layer that runs: its kind, kernel and precision (`u8`, `i8`, `f32`, `bf16` …), and the nodes it was made of."""

    kind: str
    kernel: str
    precision: str
    nodes: tuple[str, ...]

    @property
    def computes_in(self) -> str:
        """The precision of the kernel: that of the layer may be its weight's alone."""
        return next((name for name in _FLOATS if self.kernel.endswith(f"_{name}")), self.precision)


class PluginOrder(TypedDict):
    """The part of every order to the worker: the device and the options of its plugin."""

    device: str
    options: dict[str, str]


class BlobOrder(PluginOrder):
    """An order to compile a model; `blob` is None where nothing is to be written."""

    model: str
    blob: str | None


class InferOrder(PluginOrder, SamplesOrder):
    """An order to run a model on samples."""

    model: str


class BlobReply(TypedDict):
    """The answer to an order to compile: the error, or the fields of each `PluginLayer`."""

    error: str | None
    layers: list[tuple[str, str, str, list[str]]]


@dataclass(frozen=True, slots=True)
class CompiledBlob:
    """The result of compiling: the layers that will run, or the error."""

    error: str | None
    layers: tuple[PluginLayer, ...]


def available() -> bool:
    """True if OpenVINO is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def version() -> str:
    """The version of OpenVINO, from package metadata: its library is not loaded."""
    _require_package()
    return importlib.metadata.version(PACKAGE)


def devices() -> dict[str, str]:
    """The devices of this machine that OpenVINO can compile for, and their full names."""
    found: dict[str, str] = _call("list_devices", {}, _SECONDS_TO_START)["devices"]
    return found


def check(plugin: Plugin) -> None:
    """Refuse a device that is not on this machine, and options that it does not have."""
    _call("check_plugin", _order(plugin), _SECONDS_TO_START)


def compile_blob(model: Path, blob: Path | None, plugin: Plugin = CPU, *, timeout: float) -> CompiledBlob:
    """Compile the ONNX model at `model` and write the result to `blob`; without `blob` nothing is written."""
    path = None if blob is None else str(blob.resolve())
    order: BlobOrder = {"model": str(model.resolve()), "blob": path, **_order(plugin)}
    reply: BlobReply = _call("compile_blob", order, timeout)
    layers = (PluginLayer(kind, kernel, precision, tuple(nodes)) for kind, kernel, precision, nodes in reply["layers"])
    return CompiledBlob(reply["error"], tuple(layers))


def run(
    path: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    outputs: Sequence[str],
    plugin: Plugin = CPU,
    *,
    timeout: float,
    done: Callable[[], None] = nothing,
) -> list[dict[str, np.ndarray]]:
    """The outputs of a model, one dictionary a sample: a blob (by its suffix), or an ONNX model that is compiled first.

    `outputs` are the graph's outputs in order: OpenVINO may know the same tensor by several names. `done` is
    called for each sample.
    """
    run = sample_files.SamplesRun(done)
    with sample_files.sent(samples) as files:
        run.add(files)
        order: InferOrder = {"model": str(path.resolve()), **files, **_order(plugin)}
        count = _call("run_samples", order, timeout, run.look)["outputs"]
        run.look()
        assert count == len(outputs), f"{path} has {count} outputs, not {', '.join(outputs)}"
        return sample_files.received(files, outputs)


def _order(plugin: Plugin) -> PluginOrder:
    return {"device": plugin.device, "options": dict(plugin.options)}


def _call(job: str, order: Mapping[str, object], timeout: float, look: Callable[[], None] | None = None) -> Any:
    _require_package()
    name, limit = f"intact.backends.openvino.job:{job}", process.default_memory_limit()
    with process.started(name, order, timeout=timeout, memory_limit=limit) as reply:
        return reply(look).result


def _require_package() -> None:
    if not available():
        raise NotAvailable("E140", "OpenVINO is not installed (package openvino)", fix=INSTALL)
