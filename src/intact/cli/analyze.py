"""`intact analyze`: what of a model a device takes, and why not the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from intact.cli import arguments
from intact.cli.options import CONFIG, DATA, DIMS, HF, MODEL, QUANT, TALK, TARGET, TOOLCHAIN, Flags, option, takes

if TYPE_CHECKING:
    from intact.results import Analysis

NAME = "analyze"
SETTINGS = (HF, TARGET, QUANT, DATA, TOOLCHAIN, DIMS)
SOME_ON_CPU, NONE_ON_NPU = 1, 4
EVERY_DEVICE = "all"
LIVE = (option("live", "Ask the vendor's library, not the table.", bool),)


@takes(MODEL, HF, TARGET, QUANT, DATA, LIVE, TOOLCHAIN, DIMS, CONFIG, TALK)
def run(values: Flags) -> None:
    """Show which nodes a device takes, which it does not, why, and what would help.

    A float model is analysed as it would be quantized at --precision. --device all compares devices.
    Exit status: 0 every compute node is on the NPU, 1 some are not, 4 none is.

    Example: intact analyze model.onnx --device qnn --soc SM8550
    """
    every = values["device"] == EVERY_DEVICE
    if every:
        values["device"] = None
    config, source = arguments.settings(values, *SETTINGS), arguments.source(values)
    from intact.api import early

    check = early.check_files if every else early.check_device
    check(config)
    early.refuse_auto(config)
    from intact.api.analyze import analyze
    from intact.cli import console, summary

    talk = console.Talk(quiet=values["quiet"] or values["as_json"])
    found = analyze(**source, config=config, live=values["live"], every_device=every, events=talk)
    if values["as_json"]:
        told = [asdict(analysis) for analysis in found]
        console.print_json({"targets": told} if every else told[0])
    elif not values["quiet"]:
        if every:
            summary.show_targets(found)
        for analysis in found:
            show(analysis, console.say)
    status = max(status_of(analysis) for analysis in found)
    if status:
        raise typer.Exit(status)


def status_of(analysis: Analysis) -> int:
    """The exit status that an analysis deserves; a device without an NPU has none to miss."""
    if not analysis.has_npu or not analysis.cpu_nodes:
        return 0
    return SOME_ON_CPU if analysis.npu_nodes else NONE_ON_NPU


def show(analysis: Analysis, say: Callable[[str], None]) -> None:
    """Show an analysis to people."""
    place = "NPU" if analysis.has_npu else "integer kernels"
    soc = f" ({analysis.soc})" if analysis.soc else ""
    pieces = f", in {analysis.partitions} piece{'' if analysis.partitions == 1 else 's'}"
    taken, total = len(analysis.npu_nodes), analysis.compute_nodes
    say(f"{analysis.target}{soc}, by its {analysis.method}: {taken} of {total} compute nodes on {place}{pieces}")
    for node in analysis.cpu_nodes:
        say(f"  {node.name} ({node.op}): {node.reason}")
    for doubt in analysis.doubts:
        say(f"  computed wrongly: {doubt}")
    if analysis.float_nodes:
        names = ", ".join(f"{node.name} ({node.op})" for node in analysis.float_nodes)
        say(f"  computed in float: {names}")
