"""`intact quantize`: a float model in, a QDQ model out."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import (
    CLUSTER,
    CONFIG,
    DATA,
    DIMS,
    HF,
    MEMORY,
    MODEL,
    OUTPUT,
    QUANT,
    RESUME,
    TALK,
    TARGET,
    Flags,
    takes,
)

NAME = "quantize"
SETTINGS = (HF, TARGET, QUANT, DATA, DIMS, MEMORY)


@takes(MODEL, HF, TARGET, QUANT, DATA, OUTPUT, DIMS, MEMORY, CONFIG, CLUSTER, RESUME, TALK)
def run(values: Flags) -> None:
    """Quantize a float model for a device, and save it as ONNX with Q/DQ nodes.

    Example: intact quantize model.onnx --precision uint8 --data inputs.npz -o model.qdq.onnx
    """
    config, source = arguments.settings(values, *SETTINGS), arguments.source(values)
    from intact.api import early

    early.check_device(config)
    early.refuse_auto(config)
    from intact.api.quantize import quantize
    from intact.cli import console
    from intact.reports.figures import count

    talk = console.Talk(quiet=values["quiet"])
    result = quantize(
        **source,
        config=config,
        output=values["output"],
        overwrite=values["overwrite"],
        cluster=values["cluster"],
        resume=values["resume"],
        events=talk,
    )
    if values["as_json"]:
        console.print_json(result.to_dict())
    elif not values["quiet"]:
        console.say(f"{count(result.nodes_quantized, 'node')} quantized for {result.target}: {values['output']}")
