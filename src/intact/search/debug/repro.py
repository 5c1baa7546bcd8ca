"""A folder that shows one fault alone: the smallest models, inputs for them, and how to run them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.backends import installed
from intact.backends.base import Device
from intact.model import io
from intact.reports import publish
from intact.search.debug.findings import Destination

REPRODUCE = "reproduce.py"

COMPARE = """\
import numpy as np
import onnxruntime as ort

inputs = np.load("inputs.npz")


def run(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: inputs[value.name] for value in session.get_inputs()})[0]


expected, found = run("reference.onnx").astype(float), run("model.onnx").astype(float)
print("SQNR:", 10 * np.log10(np.sum(expected**2) / np.sum((expected - found) ** 2)), "dB")
"""


def write_difference(
    folder: Path,
    what: str,
    reference: ir.Model,
    model: ir.Model,
    inputs: Mapping[str, np.ndarray],
    *,
    overwrite: bool = False,
) -> None:
    """Write two models that should agree on `inputs`, and a script that shows that they do not."""
    with publish.staged(folder, overwrite=overwrite) as work:
        io.save(reference, work / "reference.onnx")
        _write(work, model, inputs)
        (work / "compare.py").write_text(COMPARE, encoding="utf-8")
        _explain(work, what, "python compare.py    # in this folder")


def write_device(
    save: Destination,
    what: str,
    model: ir.Model,
    inputs: Mapping[str, np.ndarray],
    device: Device,
) -> None:
    """Write a model that should give the same on the NPU as on the CPU, or compile at all.

    Where the backend knows how, a script shows that without intact, for the vendor to run.
    """
    data = " --data inputs.npz" if inputs else ""
    arch = "" if device.arch is None else f" --arch v{device.arch}"
    command = f"intact debug model.onnx --device {device.backend}{arch}{data}"
    script = installed.find(device.backend).repro_script(device)
    with publish.staged(save.folder, overwrite=save.overwrite) as work:
        _write(work, model, inputs)
        if script is None:
            _explain(work, what, command)
        else:
            (work / REPRODUCE).write_text(script, encoding="utf-8")
            _explain(work, what, f"python {REPRODUCE}    # needs the vendor's package alone\n    {command}")


def _write(work: Path, model: ir.Model, inputs: Mapping[str, np.ndarray]) -> None:
    io.save(model, work / "model.onnx")
    if inputs:
        # mypy takes the keyword arguments of numpy's stub for its flags.
        np.savez(work / "inputs.npz", **inputs)  # type: ignore[arg-type]


def _explain(work: Path, what: str, command: str) -> None:
    text = f"{what}\n\n    {command}\n"
    (work / "README.md").write_text(text, encoding="utf-8")
