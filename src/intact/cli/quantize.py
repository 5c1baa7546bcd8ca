"""`intact quantize`: a float model in, a QDQ model out."""

from __future__ import annotations

from typing import Any

from intact.cli import arguments
from intact.cli.options import CONFIG, DATA, DIMS, HF, MODEL, OUTPUT, QUANT, TALK, TARGET, takes

NAME = "quantize"
SETTINGS = (HF, TARGET, QUANT, DATA, DIMS)


@takes(MODEL, HF, TARGET, QUANT, DATA, OUTPUT, DIMS, CONFIG, TALK)
def run(values: dict[str, Any]) -> None:
    """Quantize a float model for a device, and save it as ONNX with Q/DQ nodes.

    Example: intact quantize model.onnx --precision uint8 --data inputs.npz -o model.qdq.onnx
    """
    from intact.cli import console
    from intact.pipeline import files

    config = arguments.settings(values, *SETTINGS)
    talk = console.Talk(quiet=values["quiet"])
    output, overwrite = values["output"], values["overwrite"]
    with arguments.model_file(values, config, talk) as given:
        result = files.quantize_file(given.path, given.config, output, overwrite=overwrite, events=talk)
    if values["as_json"]:
        console.print_json(result)
    elif not values["quiet"]:
        console.say(f"{result['nodes_quantized']} nodes quantized for {result['target']}: {values['output']}")
