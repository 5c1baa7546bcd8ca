"""`intact export`: a Hugging Face model as an ONNX file that computes the same."""

from __future__ import annotations

import typer

from intact.cli import arguments
from intact.cli.options import CONFIG, HF, IMAGES, OUTPUT, TALK, Flags, Option, takes

NAME = "export"
SOURCE = (
    Option("source", str, typer.Argument(help="A Hugging Face model: a folder, an ID of the hub, or ID@REVISION.")),
)
HOW = (*(one for one in HF if one.name != "hf"), *(one for one in IMAGES if one.name == "image_size"))


@takes(SOURCE, HOW, OUTPUT, CONFIG, TALK)
def run(values: Flags) -> None:
    """Export a Hugging Face model to ONNX, and compare it with torch on the same inputs.

    Shapes are fixed, as NPUs want them: one text of --sequence-length tokens, or one image of the size that the model
    was trained for. Needs the hf extra.

    Example: intact export organisation/model -o model.onnx
    """
    config = arguments.settings(values, HOW)
    from dataclasses import asdict

    from intact.api.export import export
    from intact.cli import console

    result = export(
        values["source"],
        config=config,
        output=values["output"],
        overwrite=values["overwrite"],
        events=console.Talk(quiet=values["quiet"]),
    )
    if values["as_json"]:
        console.print_json({"output": str(values["output"]), **asdict(result)})
    elif not values["quiet"]:
        console.say(f"{result.architecture} for {result.task}: {values['output']}")
