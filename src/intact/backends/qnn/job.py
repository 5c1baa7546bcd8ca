"""QNN sessions. Everything here runs in the worker; `backends.qnn.client` is the side that calls it."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import onnxruntime_qnn

from intact.backends import sample_files
from intact.errors import SettingsError, ToolchainError
from intact.runtime.ort_message import sentence

if TYPE_CHECKING:
    from intact.backends.qnn.client import ChipOrder, CompileOrder, CompileReply, LoadOrder, RunOrder
    from intact.targets.provider_placement import AssignedNodes

PROVIDER = "QNNExecutionProvider"

# Set by our own settings; a second place for them could only disagree.
_OURS = {"htp_arch": "the architecture (--arch)", "soc_model": "the chip (--soc)"}

# ONNX Runtime says this of a provider whose interface it does not know (seen with onnxruntime-qnn 2.3.0).
_OTHER_API = "ort_version_supported"

_SAMPLES = sample_files.SamplesOrder.__annotations__.keys()


def compile_context(request: CompileOrder) -> CompileReply:
    """Compile `model` into the EPContext model `context`; both paths are relative to `folder`.

    The compiler hashes the path as given and numbers what it makes, so that only a relative path, and one
    compilation per process, give the same bytes every time.
    """
    os.chdir(request["folder"])
    options = session_options(request)
    # Without ORT's own optimizations every node keeps its name, and what is on the CPU is listed as it is.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0" if request["fallback"] else "1")
    for setting, value in request["settings"].items():
        options.add_session_config_entry(setting, value)
    if request["context"] is not None:
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_embed_mode", "0")
        options.add_session_config_entry("ep.context_file_path", request["context"])
    try:
        session = create(request["model"], options)
    # ORT's exception classes have no common base but Exception.
    except Exception as error:
        _refuse_other_api(error)
        return {"error": sentence(error), "assigned": []}
    return {"error": None, "assigned": _assignment(session)}


def compile_one(request: dict[str, str]) -> dict[str, object]:
    """Compile the ONNX file `model` for the simulator, to see that the library works."""
    order: ChipOrder = {"arch": None, "soc_id": None, "ep_options": {}, "verbose": False}
    options = session_options(order)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    _load(request["model"], options)
    return {}


def load_model(request: LoadOrder) -> dict[str, object]:
    """Load `model` in the simulator."""
    _load(request["model"], session_options(request))
    return {}


def run_samples(request: RunOrder) -> dict[str, list[str]]:
    """Run `model` in the simulator on every sample of `inputs` (an .npz) and save the results in `outputs`."""
    if request["core"] is not None:
        os.sched_setaffinity(0, {request["core"]})  # before the simulator starts its threads, which inherit it
    session = _session_for(json.dumps({name: item for name, item in request.items() if name not in _SAMPLES}))
    names = [value.name for value in session.get_outputs()]
    sample_files.answer(request, (_run(session, names, feeds) for feeds in sample_files.each(request)))
    return {"names": names}


@cache
def _session_for(order: str) -> ort.InferenceSession:
    """The session of an order, in JSON and without its samples: a process that stays loads a model once."""
    request: RunOrder = json.loads(order)
    options = session_options(request)
    if not request["optimize"]:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _load(request["model"], options)


def _load(path: str, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        session = create(path, options)
    # ORT's exception classes have no common base but Exception.
    except Exception as error:
        _refuse_other_api(error)
        raise ToolchainError("E108", f"{path}: the simulator does not load it: {sentence(error)}") from error
    if PROVIDER not in {graph["provider"] for graph in _assignment(session)}:
        raise ToolchainError("E108", f"{path}: the simulator loads no part of it")
    return session


def _run(session: ort.InferenceSession, names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        values: list[np.ndarray] = session.run(names, feeds)
    # ORT's exception classes have no common base but Exception.
    except Exception as error:
        raise ToolchainError("E109", f"the simulator stopped: {sentence(error)}") from error
    return values


def session_options(request: ChipOrder) -> ort.SessionOptions:
    """Session options with the HTP backend of QNN for the requested architecture and chip."""
    options = ort.SessionOptions()
    options.log_severity_level = 0 if request["verbose"] else 2
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices(_devices(), _provider_options(request))
    return options


@cache
def _devices() -> list[ort.OrtEpDevice]:
    try:
        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    # A library that does not load (wrong platform, old glibc) surfaces as one of several unrelated exceptions.
    except Exception as error:
        raise ToolchainError("E106", f"the QNN provider does not load: {sentence(error)}") from error
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise ToolchainError("E106", "the QNN provider finds no device on this machine")
    return devices


def _provider_options(request: ChipOrder) -> dict[str, str]:
    given = request["ep_options"]
    for name in given.keys() & _OURS.keys():
        raise SettingsError("S128", f"provider option {name}: it follows from {_OURS[name]}", fix=f"leave {name} out")
    _refuse_unknown(given)
    options = {} if "backend_type" in given else {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    options |= given
    if request["arch"] is not None:
        options["htp_arch"] = str(request["arch"])
    if request["soc_id"] is not None:
        options["soc_model"] = str(request["soc_id"])
    return options


def _refuse_unknown(given: dict[str, str]) -> None:
    """The provider ignores options that it does not know; their names are nowhere in its library."""
    library = Path(onnxruntime_qnn.get_library_path()).read_bytes() if given else b""
    unknown = [name for name in given if name.encode() not in library]
    if unknown:
        version = onnxruntime_qnn.__version__
        raise SettingsError(
            "S129", f"provider option {', '.join(unknown)}: onnxruntime-qnn {version} has no such option"
        )


def create(path: str, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session on the model at `path` that does not fall back to another provider."""
    # enable_fallback=0: when the provider fails, the Python class would otherwise retry on the CPU.
    return ort.InferenceSession(path, options, enable_fallback=0, read_config_from_model=0)


def _refuse_other_api(error: Exception) -> None:
    """Say so if a session failed because the provider was made for another ONNX Runtime: no model is to blame."""
    if _OTHER_API in str(error):
        ours, vendors = ort.__version__, onnxruntime_qnn.__version__
        raise ToolchainError(
            "E106",
            f"onnxruntime-qnn {vendors} does not start in onnxruntime {ours}, which has another interface",
            fix="install a newer onnxruntime-qnn, or the onnxruntime that it was made for",
        ) from error


def _assignment(session: ort.InferenceSession) -> list[AssignedNodes]:
    """Every subgraph with its provider and its nodes."""
    return [
        {"provider": graph.ep_name, "nodes": [(node.name, node.op_type) for node in graph.get_nodes()]}
        for graph in session.get_provider_graph_assignment_info()
    ]
