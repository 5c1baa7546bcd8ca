"""A script that shows a fault of the compiler or the simulator to its vendor: it needs the vendor's package alone."""

from __future__ import annotations

from collections.abc import Mapping

_SCRIPT = '''\
"""Runs model.onnx on the CPU and in the simulator of a Hexagon NPU, and compares the first output.

Needs: pip install {needs}
"""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_qnn as qnn

PROVIDER = "QNNExecutionProvider"
CHIP = {chip}
HERE = Path(__file__).parent


def session(on_npu):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not on_npu:
        return ort.InferenceSession(HERE / "model.onnx", options, providers=["CPUExecutionProvider"])
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")  # an error, never a run on the CPU
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    options.add_provider_for_devices(devices, {{"backend_path": qnn.get_qnn_htp_path(), **CHIP}})
    return ort.InferenceSession(HERE / "model.onnx", options, enable_fallback=0)


ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
npu = session(on_npu=True)
print("compiled by onnxruntime-qnn", qnn.__version__, CHIP)
if (HERE / "inputs.npz").exists():
    inputs = dict(np.load(HERE / "inputs.npz"))
    expected = session(on_npu=False).run(None, inputs)[0].astype(float)
    found = npu.run(None, inputs)[0].astype(float)
    noise = np.sum((expected - found) ** 2)
    print("largest value:", np.abs(expected).max(), "largest difference:", np.abs(expected - found).max())
    print("SQNR:", 10 * np.log10(np.sum(expected**2) / noise) if noise else np.inf, "dB")
'''


def write(chip: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """The script for a chip, with the versions of the packages that it was seen with."""
    needs = " ".join(f"{name}=={versions[name]}" for name in ("onnxruntime", "onnxruntime-qnn"))
    return _SCRIPT.format(needs=needs, chip=dict(chip))
