"""`intact compile`: the vendor's toolchain on a quantized model, or on a float one that is quantized first."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import COMPILE, CONFIG, DATA, DIMS, HF, MODEL, OUTPUT, QUANT, TALK, TARGET, Flags, takes

NAME = "compile"
SETTINGS = (HF, TARGET, QUANT, DATA, DIMS, COMPILE)


@takes(MODEL, HF, TARGET, QUANT, DATA, OUTPUT, DIMS, COMPILE, CONFIG, TALK)
def run(values: Flags) -> None:
    """Compile a model for a device, without verifying it. A float model is quantized first, as build would.

    Example: intact compile model.qdq.onnx --device qnn --soc SM8550 -o output/
    """
    config, source = arguments.settings(values, *SETTINGS), arguments.source(values)
    from intact.api import early

    early.check_folder(values["output"], overwrite=values["overwrite"])
    early.check_device(config)
    early.refuse_auto(config)
    from intact.api.compile import compile
    from intact.cli import console, summary

    talk = console.Talk(quiet=values["quiet"])
    built = compile(**source, config=config, output=values["output"], overwrite=values["overwrite"], events=talk)
    summary.show(built, values["output"], as_json=values["as_json"], quiet=values["quiet"])
    console.refuse_failed(built.judged, built.gates)
