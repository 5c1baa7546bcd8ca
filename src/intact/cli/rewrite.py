"""`intact rewrite`: a quantized model in the form that a device takes, compared with what it was."""

from __future__ import annotations

from intact.cli import arguments
from intact.cli.options import CONFIG, DATA, DIMS, MODEL, OUTPUT, TALK, TARGET, Flags, option, takes

NAME = "rewrite"
SETTINGS = (TARGET, DATA, DIMS)
REWRITE = (
    option(
        "exact",
        "Only rules that change no integer, or also those that move one by a step or give a weight another "
        "grid, where each layer keeps 40 dB. [default: near]",
        bool | None,
        "--exact/--near",
    ),
    option(
        "explain",
        "Say which rules fired at this node, and why others did not; without a node, why rules did not fire "
        "where they match.",
        metavar="[NODE]",
    ),
)


@takes(MODEL, TARGET, REWRITE, DATA, OUTPUT, DIMS, CONFIG, TALK)
def run(values: Flags) -> None:
    """Rewrite a quantized model to the form that a device takes, and prove that the numbers stay.

    Example: intact rewrite model.qdq.onnx -o model.onnx --device cpu --exact
    """
    config, path = arguments.settings(values, *SETTINGS), arguments.model_path(values)
    from intact.api import early

    early.check_device(config)
    from intact.api.rewrite import rewrite
    from intact.cli import console, summary

    result = rewrite(
        path,
        config=config,
        output=values["output"],
        rules="exact" if values["exact"] is True else "near",
        explain=values["explain"],
        overwrite=values["overwrite"],
        events=console.Talk(quiet=values["quiet"]),
    )
    if values["as_json"]:
        console.print_json(result.to_dict())
    elif not values["quiet"]:
        summary.show_rewriting(result)
