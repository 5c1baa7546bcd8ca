"""`intact build`: from a model file to a verified model for a device."""

from __future__ import annotations

from typing import Any

from intact.cli import options
from intact.cli.options import COMPILE, CONFIG, DATA, DIMS, GATES, MODEL, OUTPUT, PLACEMENT, QUANT, TALK, TARGET, takes

NAME = "build"
SETTINGS = (TARGET, QUANT, DATA, DIMS, COMPILE, GATES, PLACEMENT)
FIXES = {
    "min_sqnr": "try --precision w8a16, another --method, or more calibration data",
    "require_npu": "change the nodes that are named, or see intact analyze",
}


@takes(MODEL, TARGET, QUANT, DATA, OUTPUT, GATES, PLACEMENT, DIMS, COMPILE, CONFIG, TALK)
def run(values: dict[str, Any]) -> None:
    """Quantize, compile and verify a model for a device: the whole pipeline.

    The output folder holds model.onnx (what to deploy), model.qdq.onnx (portable), manifest.json and report.html.

    Example: intact build --onnx model.onnx --device qnn --precision uint8 --data inputs.npz -o output/
    """
    from intact import pipeline
    from intact.cli import console, summary
    from intact.errors import GateFailed

    path = options.model_path(values)
    config = options.settings(values, *SETTINGS)
    talk = console.Talk(quiet=values["quiet"])
    built = pipeline.build(path, config, values["output"], overwrite=values["overwrite"], events=talk)
    summary.show(built, values["output"], as_json=values["as_json"], quiet=values["quiet"])
    failed = [gate for gate in built.gates if not gate.passed]
    if failed:
        raise GateFailed(
            "G101",
            "; ".join(f"{gate.name}: {gate.detail}" for gate in failed),
            allowed=", ".join(f"{gate.name} {gate.limit:g}" for gate in failed),
            fix="; ".join((*(FIXES[gate.name] for gate in failed), "the artifacts are in place")),
        )
