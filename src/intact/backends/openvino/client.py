"""OpenVINO, called from this process and run in another."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from intact.errors import NotAvailable
from intact.runtime import process

PACKAGE = "openvino"
INSTALL = "pip install 'intact[openvino]'"
BLOB = ".blob"
_SECONDS_TO_START = 120.0
_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Plugin:
    """What to compile for: a device as OpenVINO names it, and options of its plugin.

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
    """What a user's options mean: `device` names the plugin, the others are its own, over those that keep accuracy."""
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


@dataclass(frozen=True, slots=True)
class CompiledBlob:
    """What compiling gave: the layers that will run, or the error."""

    error: str | None
    layers: tuple[PluginLayer, ...]


def available() -> bool:
    """Whether OpenVINO is installed."""
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
    _call("check_plugin", _where(plugin), _SECONDS_TO_START)


def compile_blob(model: Path, blob: Path | None, plugin: Plugin = CPU, *, timeout: float) -> CompiledBlob:
    """Compile the ONNX model at `model` and write the result to `blob`; without `blob` nothing is written."""
    request = {"model": str(model.resolve()), "blob": None if blob is None else str(blob.resolve())}
    reply = _call("compile_blob", {**request, **_where(plugin)}, timeout)
    return CompiledBlob(
        reply["error"], tuple(PluginLayer(**{**row, "nodes": tuple(row["nodes"])}) for row in reply["layers"])
    )


def run(
    path: Path,
    samples: Sequence[Mapping[str, np.ndarray]],
    outputs: Sequence[str],
    plugin: Plugin = CPU,
    *,
    timeout: float,
) -> list[dict[str, np.ndarray]]:
    """The outputs of a model, one dictionary a sample: a blob (by its suffix), or an ONNX model that is compiled first.

    `outputs` are the graph's outputs in order: OpenVINO may know the same tensor by several names.
    """
    names = list(samples[0]) if samples else []
    with tempfile.TemporaryDirectory(prefix="intact-samples-") as folder:
        given, produced = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        arrays = {f"{row}.{index}": s[name] for row, s in enumerate(samples) for index, name in enumerate(names)}
        # mypy takes the keyword arguments of numpy's stub for its flags.
        np.savez(given, **arrays)  # type: ignore[arg-type]
        request = {
            "model": str(path.resolve()),
            "names": names,
            "samples": len(samples),
            "inputs": str(given),
            "outputs": str(produced),
        }
        count = _call("run_samples", {**request, **_where(plugin)}, timeout)["outputs"]
        assert count == len(outputs), f"{path} has {count} outputs, not {', '.join(outputs)}"
        with np.load(produced, allow_pickle=False) as results:
            rows = range(len(samples))
            return [{name: results[f"{row}.{index}"] for index, name in enumerate(outputs)} for row in rows]


def _where(plugin: Plugin) -> dict[str, Any]:
    return {"device": plugin.device, "options": dict(plugin.options)}


def _call(job: str, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    _require_package()
    limit = process.default_memory_limit()
    return process.call(f"intact.backends.openvino.job:{job}", request, timeout=timeout, memory_limit=limit).result


def _require_package() -> None:
    if not available():
        raise NotAvailable("E140", "OpenVINO is not installed (package openvino)", fix=INSTALL)
