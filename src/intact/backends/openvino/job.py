"""OpenVINO models. Everything here runs in the worker; `backends.openvino.client` is the side that calls it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino

from intact.backends import sample_files
from intact.backends.openvino.client import PluginLayer
from intact.errors import NotAvailable, SettingsError, ToolchainError

if TYPE_CHECKING:
    from intact.backends.openvino.client import BlobOrder, BlobReply, InferOrder, PluginOrder

BLOB = ".blob"

# Where in its sources an exception passed through; the reason stands behind them.
_PASSED = re.compile(r"Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:|\[CPU\] ")


def list_devices(request: dict[str, object]) -> dict[str, dict[str, str]]:
    """The devices that OpenVINO finds on this machine, by what it calls them, with their full names."""
    core = openvino.Core()
    return {"devices": {name: core.get_property(name, "FULL_DEVICE_NAME") for name in core.available_devices}}


def check_plugin(request: PluginOrder) -> dict[str, object]:
    """Refuse a device that is not here, and options that it does not have."""
    _check(request["device"], request["options"])
    return {}


def compile_blob(request: BlobOrder) -> BlobReply:
    """Compile `model` for `device`, and write what came of it to `blob` unless that is None."""
    _check(request["device"], request["options"])
    try:
        compiled = compile_model(request["model"], request["device"], request["options"])
    # OpenVINO raises RuntimeError, and others where a value of an option does not convert.
    except Exception as error:
        return {"error": sentence(error), "layers": []}
    if request["blob"] is not None:
        Path(request["blob"]).write_bytes(compiled.export_model().getvalue())
    rows = [(layer.kind, layer.kernel, layer.precision, list(layer.nodes)) for layer in layers(compiled)]
    return {"error": None, "layers": rows}


def run_samples(request: InferOrder) -> dict[str, int]:
    """Run the ONNX model or blob `model` on every sample of `inputs` (an .npz), and save the results in `outputs`."""
    compiled = load(request["model"], request["device"], request["options"])
    sample_files.answer(request, (_run(compiled, feeds) for feeds in sample_files.each(request)))
    return {"outputs": len(compiled.outputs)}


def compile_model(path: str, device: str, options: Mapping[str, str]) -> openvino.CompiledModel:
    """The ONNX model at `path` for `device`."""
    core = openvino.Core()
    return core.compile_model(core.read_model(path), device, dict(options))


def load(path: str, device: str, options: Mapping[str, str]) -> openvino.CompiledModel:
    """The blob (by its suffix) or ONNX model at `path`, ready to run."""
    try:
        if not path.endswith(BLOB):
            return compile_model(path, device, options)
        return openvino.Core().import_model(Path(path).read_bytes(), device, dict(options))
    # OpenVINO raises RuntimeError, and others where a value of an option does not convert.
    except Exception as error:
        raise ToolchainError("E141", f"{path}: OpenVINO does not load it: {sentence(error)}") from error


def infer(compiled: openvino.CompiledModel, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a compiled model, in the order of the graph."""
    values = compiled.create_infer_request().infer(dict(feeds))
    # Copied, because what OpenVINO returns may be its own memory, which the next inference overwrites.
    return [np.array(values[index]) for index in range(len(compiled.outputs))]


def opened(path: str, order: PluginOrder, *, profile: bool) -> TimedBlob:
    """A model to time, on the device and with the options of `order`; with `profile` its layers are timed too."""
    counters = {"PERF_COUNT": "YES"} if profile else {}
    return TimedBlob(load(path, order["device"], {**order["options"], **counters}))


class TimedBlob:
    """A compiled model with one request, which takes and gives arrays without copies, as ONNX Runtime does."""

    def __init__(self, compiled: openvino.CompiledModel) -> None:
        self.inputs: dict[str, np.dtype[Any]] = {
            port.any_name: port.get_element_type().to_dtype() for port in compiled.inputs
        }
        self._request = compiled.create_infer_request()

    def run(self, feeds: Mapping[str, np.ndarray]) -> object:
        """Run once."""
        return self._request.infer(dict(feeds), share_inputs=True, share_outputs=True)

    def layer_times(
        self, feeds: Mapping[str, np.ndarray], *, warm_up: int, runs: int
    ) -> dict[tuple[str, str], list[float]]:
        """Seconds of each layer, by name and kind, in each of `runs`; the model was opened with `profile`.

        A clock of microseconds may miss a layer in a run; that counts as no time.
        """
        found: dict[tuple[str, str], list[float]] = {}
        for number in range(warm_up + runs):
            self._request.infer(dict(feeds))
            for row in self._request.get_profiling_info() if number >= warm_up else ():
                if row.status == row.Status.EXECUTED:
                    times = found.setdefault((row.node_name, row.node_type), [0.0] * runs)
                    times[number - warm_up] = row.real_time.total_seconds()
        return found


def layers(compiled: openvino.CompiledModel) -> list[PluginLayer]:
    """The layers that run, in order, with the nodes that they were made of."""
    operations = compiled.get_runtime_model().get_ordered_ops()
    facts = [{key: str(found.value) for key, found in op.get_rt_info().items()} for op in operations]
    return [
        PluginLayer(
            fact["layerType"],
            fact["primitiveType"],
            fact["runtimePrecision"],
            tuple(name for name in fact["originalLayersNames"].split(",") if name),
        )
        for fact in facts
    ]


def sentence(error: Exception) -> str:
    """The message of an error that OpenVINO raised, on one line and without the places that it came through."""
    return " ".join(_PASSED.sub("", str(error)).split())


def _check(device: str, options: Mapping[str, str]) -> None:
    """Refuse a device that is not here, and options that it does not have."""
    core = openvino.Core()
    here = core.available_devices
    if device not in {*here, *(name.split(".")[0] for name in here)}:
        found = ", ".join(f"{name} ({core.get_property(name, 'FULL_DEVICE_NAME')})" for name in here)
        raise NotAvailable("E143", f"OpenVINO finds no device {device} on this machine", allowed=found)
    taken = sorted(core.get_property(device, "SUPPORTED_PROPERTIES"))
    unknown = [name for name in options if name not in taken]
    if unknown:
        raise SettingsError(
            "S188", f"option {unknown[0]}: OpenVINO has none such for {device}", allowed=", ".join(taken)
        )


def _run(compiled: openvino.CompiledModel, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    try:
        return infer(compiled, feeds)
    except Exception as error:
        raise ToolchainError("E142", f"OpenVINO stopped while running the model: {sentence(error)}") from error
