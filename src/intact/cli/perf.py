"""`intact perf`: models beside each other, and how long they take."""

from __future__ import annotations

from pathlib import Path

import typer

from intact.cli import arguments
from intact.cli.options import IMAGES, LATENCY, TALK, TEXT, Flags, Option, option, takes

NAME = "perf"
FILES = (
    Option(
        "models",
        list[Path],
        typer.Argument(help="Models to time; ratios are to the first, so give the float one first.", metavar="MODEL"),
    ),
)
HOW = (
    option("data", "Inputs: an .npz keyed by input name, a folder of images, or module:function. [default: synthetic]"),
    option("threads", "Threads of an operator. [default: one for each core]", int | None, min=1),
    option("runs", "Inferences of each model. [default: what fits into 10 seconds, 15 to 300]", int | None, min=1),
)
SETTINGS = (IMAGES, TEXT, LATENCY)


@takes(FILES, HOW, *SETTINGS, TALK)
def run(values: Flags) -> None:
    """Time models on this machine, with ONNX Runtime or OpenVINO, and say what takes the time.

    The models take turns, one inference each, so that whatever else the machine does slows all of them alike; believe
    the ratios more than the milliseconds. Memory is the peak of a process that does nothing but load and run the model.
    Operators are those that ran, after the runtime's fusions. A model that is slower than the first is told as such,
    with the operators to blame.

    A blob runs in OpenVINO on the device that it was built for, any other model in ONNX Runtime on the CPU. One that is
    compiled for QNN is refused: here it runs in a simulator, whose time says nothing.

    Example: intact perf model.onnx output/model.onnx --data inputs.npz --max-latency-ratio 1.0
    """
    from intact.errors import SettingsError

    config = arguments.settings(values, HOW, *SETTINGS)
    if config.max_latency_ratio is not None and len(values["models"]) < 2:
        raise SettingsError("S145", "--max-latency-ratio: one model has no ratio", fix="give two or more models")
    arguments.there(*values["models"])
    from intact.api.perf import perf
    from intact.cli import comparison, console

    found = perf(
        *values["models"],
        threads=values["threads"] or 0,
        rounds=values["runs"],
        config=config,
        events=console.Talk(quiet=values["quiet"]),
    )
    if values["as_json"]:
        console.print_json(comparison.performance(found.measurement, found.gate))
    elif not values["quiet"]:
        comparison.show_performance(found.measurement)
    console.refuse_failed(found.judged, found.gates)
