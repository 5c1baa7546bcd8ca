"""`intact convert`: a quantized model from one form to the other."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import CONFIG, DATA, DIMS, MODEL, OUTPUT, TALK, Flags, option, takes

NAME = "convert"
SETTINGS = (DATA, DIMS)
FORM = (option("to", "qdq (DQ → op → Q) or qlinear (one operator on integers)."),)


@takes(MODEL, FORM, DATA, OUTPUT, DIMS, CONFIG, TALK)
def run(values: Flags) -> None:
    """Convert a quantized model between QDQ and QLinear operators, and compare the two.

    Operators without an integer form, 16-bit and 4-bit ones among them, stay between Q and DQ.

    Example: intact convert model.qdq.onnx --to qlinear -o model.onnx
    """
    config, path = arguments.settings(values, *SETTINGS), arguments.model_path(values)
    from intact.api.convert import convert
    from intact.cli import console, summary

    result = convert(
        path,
        to=values["to"],
        config=config,
        output=values["output"],
        overwrite=values["overwrite"],
        events=console.Talk(quiet=values["quiet"]),
    )
    if values["as_json"]:
        console.print_json(result.to_dict())
    elif not values["quiet"]:
        summary.show_rewriting(result)
