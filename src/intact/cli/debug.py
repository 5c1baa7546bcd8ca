"""`intact debug`: where two models part ways, where the NPU and the CPU do, and what does not compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from intact.cli import arguments
from intact.cli.options import COMPILE, DIMS, IMAGES, TALK, TARGET, TEXT, Option, takes

NAME = "debug"
PARTED = 1
SHOWN = 8
FILES = (
    Option("reference", Path, typer.Argument(help="The model that is right; or one model alone.", show_default=False)),
    Option("candidate", Path | None, typer.Argument(help="The model that is not.", show_default=False)),
)
INPUTS = (
    Option(
        "data",
        str | None,
        typer.Option("--data", help="Inputs: an .npz keyed by input name, a folder of images, or module:function."),
    ),
    Option("test_data", str | None, typer.Option("--test-data", help="Inputs that are all for this comparison.")),
)
OUTPUT = (
    Option(
        "output",
        Path | None,
        typer.Option("-o", "--output", help="A folder for the worst node alone, with inputs and how to run it."),
    ),
    Option("overwrite", bool, typer.Option("--overwrite", help="Replace what is there.", show_default=False)),
)
CHIP = (
    Option(
        "device",
        str | None,
        typer.Option("--device", help="Compare the CPU with this NPU too: qnn, on the vendor's simulator."),
        ("compile", "device"),
    ),
    *(option for option in TARGET if option.name in ("arch", "soc")),
)
LIMITS = tuple(option for option in COMPILE if option.name in ("ep_option", "timeout"))
# What is shown of a layer, and of a unit on the NPU, under which heading.
MODEL_FIGURES = {"own_db": "own dB", "computed_db": "computed", "grid_db": "grid", "accumulated_db": "so far"}
DEVICE_FIGURES = {"own_db": "own dB", "steps": "steps"}
SETTINGS = (CHIP, DIMS, IMAGES, TEXT, LIMITS)


@takes(FILES, INPUTS, CHIP, OUTPUT, DIMS, IMAGES, TEXT, LIMITS, TALK)
def run(values: dict[str, Any]) -> None:
    """Find the first tensor at which two models part ways, and rank layers by the error that each adds alone.

    REFERENCE CANDIDATE: a float model and a quantized one. Every layer of the candidate is fed with the tensors of
    the reference, so that no earlier error counts. A difference that later layers undo is told apart: it may be meant.

    MODEL --device qnn: one quantized model, on the CPU and on the simulator of the NPU. If it does not compile at
    all, it is cut until the smallest piece is left that does not. REFERENCE CANDIDATE --device qnn does both, in turn.

    QUANTIZED COMPILED: a candidate that is compiled cannot be looked into, so its quantized model is compiled in
    pieces, which are compared with the CPU.

    Exit status: 0 nothing parts ways, 1 something does.

    Example: intact debug model.onnx output/model.qdq.onnx --data inputs.npz -o repro/
    """
    from intact.cli import console
    from intact.search.debug.debugging import compiled_for, debug_files

    compiled = None if values["candidate"] is None else compiled_for(values["candidate"])
    device = values["device"] is not None or compiled is not None
    config = arguments.settings({**values, "device": values["device"] or compiled}, *SETTINGS)
    talk = console.Talk(quiet=values["quiet"] or values["as_json"])
    result = debug_files(
        values["reference"],
        values["candidate"],
        config,
        device=device,
        data_path=values["data"],
        test_path=values["test_data"],
        output=values["output"],
        overwrite=values["overwrite"],
        events=talk,
    )
    if values["as_json"]:
        console.print_json(result)
    elif not values["quiet"]:
        show(result, console.say)
    if result["first"] is not None:
        raise typer.Exit(PARTED)


def show(result: dict[str, Any], say: Callable[[str], None]) -> None:
    """A bisection for people."""
    {"models": _show_models, "device": _show_device, "compile": _show_compile}[result["kind"]](result, say)
    if result["repro"] is not None:
        say(f"alone, and how to run it: {result['repro']}")
    elif result["first"] is not None:
        say("-o repro/ writes this node alone, with inputs and how to run it")


def _show_models(result: dict[str, Any], say: Callable[[str], None]) -> None:
    first = result["first"]
    if first is None:
        say(f"nothing parts ways, in {result['compared']} layers on {result['samples']} samples")
    else:
        say(f"the models part ways at {_place(first)}")
        say(f"  {_grid(first) if first['cause'] == 'grid' else _weights(first)}")
        others = len(result["parted"]) - 1
        if others:
            say(f"  {others} later layer{'' if others == 1 else 's'} part ways too")
    if result["undone"]:
        names = ", ".join(layer["node"] for layer in result["undone"][:SHOWN])
        more = len(result["undone"]) - SHOWN
        say(f"differ, but later layers undo it: {names}" + (f" and {more} more" if more > 0 else ""))
    _show_worst(result, "contributions, each layer fed with right inputs", MODEL_FIGURES, say)


def _grid(layer: dict[str, Any]) -> str:
    low, high = layer["grid_range"]
    least, greatest = layer["seen_range"]
    could = (
        "" if layer["expected_db"] is None else f", where {layer['grid_type']} could hold {layer['expected_db']:.1f} dB"
    )
    return (
        f"its grid keeps {layer['grid_db']:.1f} dB{could}: it covers {low:.4g} to {high:.4g}, "
        f"the values are {least:.4g} to {greatest:.4g}"
    )


def _weights(layer: dict[str, Any]) -> str:
    return f"fed with right inputs it computes something else ({layer['computed_db']:.1f} dB): look at its weights"


def _show_device(result: dict[str, Any], say: Callable[[str], None]) -> None:
    first = result["first"]
    if first is None:
        say(f"{result['target']} computes what the CPU does, in {result['compared']} units")
    else:
        say(f"{result['target']} and the CPU part ways at {_place(first)}")
        say(f"  {first['pattern']}: {first['own_db']:.1f} dB")
        if first["together"]:
            say("  alone it computes what the CPU does: its compiler goes wrong where it joins it with what is before")
    _show_worst(result, "differences, each unit fed with the CPU's tensors", DEVICE_FIGURES, say)


def _show_compile(result: dict[str, Any], say: Callable[[str], None]) -> None:
    first = result["first"]
    say(f"{result['target']} does not compile {_place(first)}")
    say(f"  {first['pattern']}")
    say(f"  {first['error']}")
    if len(first["nodes"]) > 1:
        say(f"  it takes all of these to fail: {', '.join(first['nodes'])}")


def _place(layer: dict[str, Any]) -> str:
    return f"{layer['node']} ({layer['op']}), tensor {layer['tensor']}"


def _show_worst(result: dict[str, Any], what: str, figures: Mapping[str, str], say: Callable[[str], None]) -> None:
    """The layers or units with the largest error, in a table with these figures by heading."""
    from rich.console import Console
    from rich.table import Table

    if not result["layers"]:
        return
    say(f"the largest {what}:")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "op"):
        table.add_column(name, overflow="fold")
    for heading in figures.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in result["layers"][:SHOWN]:
        table.add_row(layer["node"], layer["op"], *(_number(layer[name]) for name in figures))
    Console(highlight=False, markup=False).print(table)


def _number(value: float | None) -> str:
    return "–" if value is None else "-∞" if value < -1e30 else f"{value:.1f}"
