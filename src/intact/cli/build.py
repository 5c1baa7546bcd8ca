"""`intact build`: from a model file to a verified model for a device."""

from __future__ import annotations

from pathlib import Path

from intact.cli import arguments
from intact.cli.options import (
    CLUSTER,
    COMPILE,
    CONFIG,
    DATA,
    DIMS,
    GATES,
    HF,
    LATENCY,
    MEMORY,
    MODEL,
    OUTPUT,
    PLACEMENT,
    QUANT,
    RESUME,
    TALK,
    TARGET,
    Flags,
    option,
    takes,
)

NAME = "build"
MORE = (
    option("junit", "Write the verdict and the gates as JUnit XML into this file too; it is replaced.", Path | None),
    option("learn", "Use what earlier builds with --learn found out about the device's compiler, and add to it.", bool),
    option("verbose", "Print all settings and every stage too.", bool, "-v", "--verbose"),
)
CHECKS = (GATES, PLACEMENT, LATENCY)
SETTINGS = (HF, TARGET, QUANT, DATA, DIMS, COMPILE, MEMORY, *CHECKS)


@takes(MODEL, HF, TARGET, QUANT, DATA, OUTPUT, *CHECKS, DIMS, COMPILE, MEMORY, CONFIG, CLUSTER, RESUME, MORE, TALK)
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
    config, source = arguments.settings(values, *SETTINGS), arguments.source(values)
    from intact.api import early

    early.check_folder(values["output"], overwrite=values["overwrite"])
    early.check_device(config)
    early.check_search(config)
    early.check_ways(config, resume=values["resume"], learn=values["learn"])
    # What is heavy comes after that: a mistake in the settings is told at once.
    from intact.api.build import build, junit
    from intact.cli import console, summary
    from intact.scratch import write_text

    talk = console.Talk(quiet=values["quiet"])
    built = build(
        **source,
        config=config,
        output=values["output"],
        overwrite=values["overwrite"],
        cluster=values["cluster"],
        resume=values["resume"],
        learn=values["learn"],
        events=talk,
    )
    if (place := values["junit"]) is not None:
        write_text(place, junit(built))
    summary.show(built, values["output"], as_json=values["as_json"], quiet=values["quiet"])
    if values["verbose"] and not values["quiet"] and not values["as_json"]:
        summary.show_more(built)
    console.refuse_failed(built.judged, built.gates, "the artifacts are in place, marked as failed in the manifest")
