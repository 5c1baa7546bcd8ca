"""`intact build`: from a model file to a verified model for a device."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import (
    COMPILE,
    CONFIG,
    DATA,
    DIMS,
    GATES,
    HF,
    LATENCY,
    MODEL,
    OUTPUT,
    PLACEMENT,
    QUANT,
    TALK,
    TARGET,
    Flags,
    takes,
)

NAME = "build"
CHECKS = (GATES, PLACEMENT, LATENCY)
SETTINGS = (HF, TARGET, QUANT, DATA, DIMS, COMPILE, *CHECKS)


@takes(MODEL, HF, TARGET, QUANT, DATA, OUTPUT, *CHECKS, DIMS, COMPILE, CONFIG, TALK)
def run(values: Flags) -> None:
    """Quantize, compile and verify a model for a device: the whole pipeline.

    The output folder holds model.onnx (what to deploy), model.qdq.onnx (portable), manifest.json and report.html; of a
    model that comes from Hugging Face also model.float.onnx, as it was exported.

    The first line of the summary is the verdict: good, passed (with gates), suspect, unverified, failed or broken; the
    last two end with status 1. Gates say what must hold of the result: if one fails, the files stay, the manifest says
    so, and the status is 1.

    Example: intact build --onnx model.onnx --device qnn --precision uint8 --data inputs.npz -o output/

    Example: intact build model.onnx --device qnn --precision auto --min-sqnr 35 --data inputs.npz -o output/ finds the
    cheapest mix of precisions with at least 35 dB, and writes it to plan.toml too.
    """
    from intact.api.build import build
    from intact.cli import console, summary

    config = arguments.settings(values, *SETTINGS)
    talk = console.Talk(quiet=values["quiet"])
    built = build(
        **arguments.source(values), config=config, output=values["output"], overwrite=values["overwrite"], events=talk
    )
    summary.show(built, values["output"], as_json=values["as_json"], quiet=values["quiet"])
    console.refuse_failed(built.judged, built.gates, "the artifacts are in place, marked as failed in the manifest")
