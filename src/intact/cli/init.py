"""`intact init`: a settings file to begin with."""

from __future__ import annotations

from pathlib import Path

from intact.cli import arguments
from intact.cli.options import (
    COMPILE,
    CONFIG,
    DATA,
    DIMS,
    GATES,
    LATENCY,
    PLACEMENT,
    QUANT,
    TALK,
    TARGET,
    Flags,
    option,
    takes,
)

NAME = "init"
SETTINGS = (TARGET, QUANT, DATA, DIMS, COMPILE, GATES, PLACEMENT, LATENCY)
WHERE = (
    option("output", "The file to write; without it, the settings are printed.", Path | None, "-o", "--output"),
    option("overwrite", "Replace what is there.", bool),
)


@takes(WHERE, *SETTINGS, CONFIG, TALK)
def run(values: Flags) -> None:
    """Print or write a settings file, every setting explained.

    Example: intact init --device qnn --precision w8a16 -o intact.toml

    Then: intact build model.onnx --config intact.toml -o output/
    """
    config = arguments.settings(values, *SETTINGS)
    from intact.api.init import init
    from intact.cli import console

    text = init(config=config, output=values.get("output"), overwrite=values["overwrite"])
    if values["as_json"]:
        import tomllib

        console.print_json(tomllib.loads(text))
    elif values.get("output") is None:
        console.say(text.rstrip("\n"))
    elif not values["quiet"]:
        console.say(str(values["output"]))
