"""`intact analyze`: what of a model a device takes, and why not the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from intact.cli import arguments
from intact.cli.options import CONFIG, DATA, DIMS, HF, MODEL, QUANT, TALK, TARGET, Option, takes

NAME = "analyze"
SETTINGS = (HF, TARGET, QUANT, DATA, DIMS)
SOME_ON_CPU, NONE_ON_NPU = 1, 4
EVERY_DEVICE = "all"
LIVE = (
    Option("live", bool, typer.Option("--live", help="Ask the vendor's library, not the table.", show_default=False)),
)


@takes(MODEL, HF, TARGET, QUANT, DATA, LIVE, DIMS, CONFIG, TALK)
def run(values: dict[str, Any]) -> None:
    """Show which nodes a device takes, which it does not, why, and what would help.

    A float model is analysed as it would be quantized at --precision. --device all compares devices.
    Exit status: 0 every compute node is on the NPU, 1 some are not, 4 none is.

    Example: intact analyze model.onnx --device qnn --soc SM8550
    """
    from intact.api.analyze import analyze
    from intact.cli import console, summary

    every = values["device"] == EVERY_DEVICE
    if every:
        values = {**values, "device": None}
    config = arguments.settings(values, *SETTINGS)
    talk = console.Talk(quiet=values["quiet"] or values["as_json"])
    asked = {"live": values["live"], "every_device": every}
    found = analyze(**arguments.source(values), config=config, events=talk, **asked)
    if values["as_json"]:
        console.print_json({"targets": found} if every else found[0])
    elif not values["quiet"]:
        if every:
            summary.show_targets(found)
        for analysis in found:
            show(analysis, console.say)
    status = max(status_of(analysis) for analysis in found)
    if status:
        raise typer.Exit(status)


def status_of(analysis: dict[str, Any]) -> int:
    """The exit status that an analysis deserves; a device without an NPU has none to miss."""
    if not analysis["has_npu"] or not analysis["cpu_nodes"]:
        return 0
    return SOME_ON_CPU if analysis["npu_nodes"] else NONE_ON_NPU


def show(analysis: dict[str, Any], say: Callable[[str], None]) -> None:
    """An analysis for people."""
    place = "NPU" if analysis["has_npu"] else "integer kernels"
    soc = f" ({analysis['soc']})" if analysis["soc"] else ""
    pieces = f", in {analysis['partitions']} piece{'' if analysis['partitions'] == 1 else 's'}"
    taken, total = len(analysis["npu_nodes"]), analysis["compute_nodes"]
    say(f"{analysis['target']}{soc}, by its {analysis['method']}: {taken} of {total} compute nodes on {place}{pieces}")
    for node in analysis["cpu_nodes"]:
        say(f"  {node['name']} ({node['op']}): {node['reason']}")
    if analysis["float_nodes"]:
        names = ", ".join(f"{node['name']} ({node['op']})" for node in analysis["float_nodes"])
        say(f"  computed in float: {names}")
