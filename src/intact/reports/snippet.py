"""The lines of Python that load and run what was built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from intact.backends.openvino.client import Plugin, plugin_of

NUMPY_TYPES = {"float": "float32", "double": "float64"}


def lines(manifest: Mapping[str, Any]) -> str | None:
    """Python that runs the deployable model, or None for a device whose runtime is not known."""
    device = manifest["config"]["compile"]["device"]
    if device == "cpu":
        session = [
            "import onnxruntime as ort",
            "",
            'session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])',
        ]
    elif device == "qnn":
        session = _qnn(whole=not manifest["placement"]["cpu_nodes"])
    elif device == "openvino":
        session = _openvino(plugin_of(manifest["config"]["compile"]["ep_options"]))
    else:
        return None
    ports = {d: [p for p in manifest["io"] if p["direction"] == d] for d in ("input", "output")}
    feeds = [f"    {json.dumps(port['name'])}: ...,  # {_array(port)}" for port in ports["input"]]
    names = ", ".join(json.dumps(port["name"]) for port in ports["output"])
    results = "model(inputs)" if device == "openvino" else f"session.run([{names}], inputs)"
    return "\n".join([*session, "inputs = {", *feeds, "}", f"outputs = {results}"])


def _openvino(plugin: Plugin) -> list[str]:
    options = json.dumps(dict(plugin.options))
    return [
        "from pathlib import Path",
        "",
        "import openvino",
        "",
        'blob = Path("model.blob").read_bytes()',
        f"model = openvino.Core().import_model(blob, {json.dumps(plugin.device)}, {options})",
    ]


def _qnn(*, whole: bool) -> list[str]:
    strict = 'options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")  # an error, never a CPU run'
    return [
        "import onnxruntime as ort",
        "import onnxruntime_qnn as qnn",
        "",
        'provider = "QNNExecutionProvider"',
        "ort.register_execution_provider_library(provider, qnn.get_library_path())",
        "devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]",
        "options = ort.SessionOptions()",
        'options.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path()})',
        *([strict] if whole else []),
        'session = ort.InferenceSession("model.onnx", options, enable_fallback=0)',
    ]


def _array(port: Mapping[str, Any]) -> str:
    dtype = NUMPY_TYPES.get(port["dtype"], port["dtype"])
    if port["scale"] is None:
        return f"{dtype} array"
    return f"{dtype} array, real = (q - {port['zero_point']}) * {port['scale']:.9g}"
