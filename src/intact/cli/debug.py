"""`intact debug`: where two models part ways, where the NPU and the CPU do, and what does not compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from intact.cli import arguments
from intact.cli.options import CLUSTER, COMPILE, DIMS, IMAGES, TALK, TARGET, TEXT, Flags, Option, option, takes

if TYPE_CHECKING:
    from intact.search.debug import findings
    from intact.search.debug.layers import Layer

Say = Callable[[str], None]

NAME = "debug"
PARTED = 1
SHOWN = 8
# A figure in the column `so far` below this is explained, because it looks like a fault.
LOW_DB = 20.0
FILES = (
    Option("reference", Path, typer.Argument(help="The model that is right; or one model alone.", show_default=False)),
    Option("candidate", Path | None, typer.Argument(help="The model that is not.", show_default=False)),
)
INPUTS = (
    option("data", "Inputs: an .npz keyed by input name, a folder of images, or module:function."),
    option("test_data", "Inputs that are all for this comparison."),
)
OUTPUT = (
    option(
        "output", "A folder for the worst node alone, with inputs and how to run it.", Path | None, "-o", "--output"
    ),
    option("overwrite", "Replace what is there.", bool),
)
CHIP = (
    option("device", "Compare the CPU with this NPU too, such as qnn, on the vendor's simulator."),
    *(one for one in TARGET if one.name in ("arch", "soc")),
)
LIMITS = tuple(one for one in COMPILE if one.name in ("ep_option", "toolchain", "timeout"))
SETTINGS = (INPUTS, CHIP, DIMS, IMAGES, TEXT, LIMITS)


@takes(FILES, INPUTS, CHIP, OUTPUT, DIMS, IMAGES, TEXT, LIMITS, CLUSTER, TALK)
def run(values: Flags) -> None:
    """Find the first tensor at which two models part ways, and rank layers by the error that each adds alone.

    REFERENCE CANDIDATE: a float model and a quantized one. Every layer of the candidate is fed with the tensors of
    the reference, so that no earlier error counts. A difference that later layers undo is told apart: it may be meant.
    The report of a build has the same for every grid, against the float model after its optimization, on fewer samples:
    a layer here may be several there.

    MODEL --device qnn: one quantized model, on the CPU and on the simulator of the NPU. If it does not compile at
    all, it is cut until the smallest piece is left that does not. REFERENCE CANDIDATE --device qnn does both, in turn.

    QUANTIZED COMPILED: a candidate that is compiled cannot be looked into, so its quantized model is compiled in
    pieces, which are compared with the CPU.

    Exit status: 0 nothing parts ways, 1 something does.

    Example: intact debug model.onnx output/model.qdq.onnx --data inputs.npz -o repro/
    """
    config = arguments.settings(values, *SETTINGS)
    arguments.there(values["reference"], values["candidate"])
    from intact.api import early

    early.check_partner(config, alone=values["candidate"] is None)
    check = early.check_files if values["device"] is None else early.check_device
    check(config)
    from intact.api.debug import debug
    from intact.cli import console

    result = debug(
        values["reference"],
        values["candidate"],
        output=values.get("output"),
        overwrite=values["overwrite"],
        config=config,
        cluster=values["cluster"],
        events=console.Talk(quiet=values["quiet"] or values["as_json"]),
    )
    if values["as_json"]:
        console.print_json(asdict(result))
    elif not values["quiet"]:
        show(result, console.say)
    if result.first is not None:
        raise typer.Exit(PARTED)


def show(result: findings.Bisection, say: Say) -> None:
    """Show a bisection to people."""
    if result.kind == "models":
        _show_models(result, say)
    elif result.kind == "device":
        _show_device(result, say)
    else:
        _show_compile(result, say)
    if result.repro is not None:
        say(f"alone, and how to run it: {result.repro}")
    elif result.first is not None:
        say("-o repro/ writes this node alone, with inputs and how to run it")


def _show_models(result: findings.ModelBisection, say: Say) -> None:
    first = result.first
    if first is None:
        say(f"nothing parts ways, in {result.compared} layers on {result.samples} samples")
    else:
        say(f"the models part ways at {_place(first)}")
        say(f"  {_grid(first) if first.cause == 'grid' else _weights(first)}")
        others = len(result.parted) - 1
        if others:
            say(f"  {others} later layer{'' if others == 1 else 's'} part ways too")
    if result.undone:
        names = ", ".join(layer.node for layer in result.undone[:SHOWN])
        more = len(result.undone) - SHOWN
        say(f"differ, but later layers undo it: {names}" + (f" and {more} more" if more > 0 else ""))
    rows = [(one, (one.own_db, one.computed_db, one.grid_db, one.accumulated_db)) for one in result.layers[:SHOWN]]
    headings = ("own dB", "computed", "grid", "so far")
    _show_worst("contributions, each layer fed with right inputs", headings, rows, say)
    if rows:
        _show_meaning(result)


def _show_meaning(result: findings.ModelBisection) -> None:
    """Say what the columns are, and that a low figure before a scale is taken back is no fault."""
    from intact.cli.console import print_wrapped

    print_wrapped(
        "own dB: SQNR that the layer leaves by itself, by what it computes and by the grid of its result; "
        "so far: SQNR of the tensor in the whole model, against the reference as it is given"
    )
    if any(one.accumulated_db is not None and one.accumulated_db < LOW_DB for one in result.layers[:SHOWN]):
        print_wrapped(
            f"less than {LOW_DB:g} dB so far may be meant: equalization moves scales to later layers, which take them "
            "back, and what a mask covers may be anything; intact verify tells what reaches the outputs"
        )


def _grid(layer: Layer) -> str:
    assert layer.grid_range is not None and layer.seen_range is not None, "a grid that is to blame has a range"
    (low, high), (least, greatest) = layer.grid_range, layer.seen_range
    could = "" if layer.expected_db is None else f", where {layer.grid_type} could hold {layer.expected_db:.1f} dB"
    return (
        f"its grid keeps {layer.grid_db:.1f} dB{could}: it covers {low:.4g} to {high:.4g}, "
        f"the values are {least:.4g} to {greatest:.4g}"
    )


def _weights(layer: Layer) -> str:
    return f"fed with right inputs it computes something else ({layer.computed_db:.1f} dB): look at its weights"


def _show_device(result: findings.DeviceBisection, say: Say) -> None:
    first = result.first
    if first is None:
        say(f"{result.target} computes what the CPU does, in {result.compared} units")
    else:
        say(f"{result.target} and the CPU part ways at {_place(first)}")
        say(f"  {first.pattern}: {first.own_db:.1f} dB")
        if first.together:
            say("  alone it computes what the CPU does: its compiler goes wrong where it joins it with what is before")
    rows = [(unit, (unit.own_db, unit.steps)) for unit in result.layers[:SHOWN]]
    _show_worst("differences, each unit fed with the CPU's tensors", ("own dB", "steps"), rows, say)


def _show_compile(result: findings.CompileBisection, say: Say) -> None:
    first = result.first
    say(f"{result.target} does not compile {_place(first)}")
    say(f"  {first.pattern}")
    say(f"  {first.error}")
    if len(first.nodes) > 1:
        say(f"  it takes all of these to fail: {', '.join(first.nodes)}")


def _place(found: Layer | findings.UnitFinding | findings.FailingUnit) -> str:
    return f"{found.node} ({found.op}), tensor {found.tensor}"


def _show_worst(
    what: str,
    headings: Sequence[str],
    rows: Sequence[tuple[Layer | findings.UnitFinding, tuple[float | None, ...]]],
    say: Say,
) -> None:
    """Show the layers or units with the largest error in a table, with their figures under these headings."""
    from intact.cli.console import print_wrapped, table

    if not rows:
        return
    say(f"the largest {what}:")
    shown = table(("node", "op"), headings)
    for found, figures in rows:
        shown.add_row(found.node, found.op, *map(_number, figures))
    print_wrapped(shown)


def _number(value: float | None) -> str:
    return "–" if value is None else "-∞" if value < -1e30 else f"{value:.1f}"
