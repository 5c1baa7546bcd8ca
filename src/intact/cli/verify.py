"""`intact verify`: two models, the same inputs, and how far apart their outputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from intact.cli import options
from intact.cli.options import GATES, IMAGES, TALK, TARGET, Option, takes

NAME = "verify"
FILES = (
    Option("reference", Path, typer.Argument(help="The model to compare with.", show_default=False)),
    Option("candidate", Path, typer.Argument(help="The model to check.", show_default=False)),
)
INPUTS = (
    Option(
        "data",
        str | None,
        typer.Option("--data", help="Inputs: an .npz keyed by input name, a folder of images, or module:function."),
    ),
    Option("test_data", str | None, typer.Option("--test-data", help="Inputs that are all for verification.")),
)
SIMULATOR = tuple(option for option in TARGET if option.name in ("arch", "soc"))
SETTINGS = (SIMULATOR, IMAGES, GATES)


@takes(FILES, INPUTS, *SETTINGS, TALK)
def run(values: dict[str, Any]) -> None:
    """Compare the outputs of two models on the same inputs.

    Of --data the rows are used that a build with the same flags would hold back.
    An EPContext model runs on the vendor's simulator, any other on the CPU without optimizations.

    Example: intact verify model.onnx output/model.onnx --data inputs.npz --min-sqnr 30
    """
    from intact import files
    from intact.cli import console, summary
    from intact.errors import GateFailed

    talk = console.Talk(quiet=values["quiet"])
    rows, gate = files.verify_files(
        values["reference"],
        values["candidate"],
        data_path=values["data"],
        test_path=values["test_data"],
        config=options.settings(values, *SETTINGS),
        events=talk,
    )
    if values["as_json"]:
        console.print_json(summary.verification(rows, gate))
    elif not values["quiet"]:
        summary.show_accuracy(rows)
    if gate is not None and not gate.passed:
        raise GateFailed("G101", f"{gate.name}: {gate.detail}", allowed=f"{gate.name} {gate.limit:g}")
