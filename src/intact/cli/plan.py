"""`intact plan`: what would be quantized, and how, as a file to read and edit."""

from __future__ import annotations

from typing import Any

from intact.cli import options
from intact.cli.options import CONFIG, DIMS, MODEL, OUTPUT, QUANT, TALK, TARGET, takes

NAME = "plan"
SETTINGS = (TARGET, QUANT, DIMS)


@takes(MODEL, TARGET, QUANT, OUTPUT, DIMS, CONFIG, TALK)
def run(values: dict[str, Any]) -> None:
    """Write which nodes and tensors would be quantized, and to which types, as a TOML file for --plan.

    Example: intact plan model.onnx --precision uint8 --device qnn -o plan.toml
    """
    from intact import files
    from intact.cli import console

    path = options.model_path(values)
    config = options.settings(values, *SETTINGS)
    talk = console.Talk(quiet=values["quiet"])
    planned = files.write_plan(path, config, values["output"], overwrite=values["overwrite"], events=talk)
    if not values["quiet"]:
        console.say(f"{len(planned.nodes)} nodes, {len(planned.grids)} grids: {values['output']}")
