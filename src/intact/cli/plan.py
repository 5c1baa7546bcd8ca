"""`intact plan`: what would be quantized, and how, as a file to read and edit."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import CONFIG, DIMS, HF, MODEL, OUTPUT, QUANT, TALK, TARGET, Flags, takes

NAME = "plan"
SETTINGS = (HF, TARGET, QUANT, DIMS)


@takes(MODEL, HF, TARGET, QUANT, OUTPUT, DIMS, CONFIG, TALK)
def run(values: Flags) -> None:
    """Write which nodes and tensors would be quantized, and to which types, as a TOML file for --plan.

    Example: intact plan model.onnx --precision uint8 --device qnn -o plan.toml
    """
    config, source = arguments.settings(values, *SETTINGS), arguments.source(values)
    from intact.api import early

    early.check_device(config)
    from intact.api.plan import plan
    from intact.cli import console

    talk = console.Talk(quiet=values["quiet"])
    planned = plan(**source, config=config, output=values["output"], overwrite=values["overwrite"], events=talk)
    if not values["quiet"]:
        console.say(f"{len(planned.nodes)} nodes, {len(planned.grids)} grids: {values['output']}")
