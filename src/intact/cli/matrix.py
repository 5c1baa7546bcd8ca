"""`intact matrix`: one model for several devices at several precisions, and a table to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from intact.cli import arguments
from intact.cli.options import (
    CLUSTER,
    COMPILE,
    CONFIG,
    DATA,
    DIMS,
    GATES,
    MODEL,
    PLACEMENT,
    QUANT,
    TALK,
    Flags,
    option,
    takes,
)

if TYPE_CHECKING:
    from intact.search.matrix.cells import Outcome

NAME = "matrix"
SOME_FAILED = 1
CELLS = (
    option(
        "devices",
        "Separated by commas: cpu, qnn, qnn:v75, qnn:SM8650, qnn@2.6.0 (a toolchain that is installed), …",
        str,
    ),
    option("precisions", "Separated by commas: uint8, w8a16, …", str),
    option("output", "A folder; each build gets one in it.", Path, "-o", "--output"),
)
POOL = (
    option("workers", "Builds at a time. [default: one a core]", int | None, min=1),
    option("threads", "Threads of each build. [default: the cores, shared out]", int | None, min=1),
    *CLUSTER,
)
# Each of these is set by the cells.
QUANTIZER = tuple(one for one in QUANT if one.name != "precision")
SETTINGS = (QUANTIZER, DATA, DIMS, COMPILE, GATES, PLACEMENT)


@takes(MODEL, CELLS, DATA, POOL, GATES, PLACEMENT, QUANTIZER, DIMS, COMPILE, CONFIG, TALK)
def run(values: Flags) -> None:
    """Build a model for several devices at several precisions, in parallel, to choose from.

    Each build goes to its own folder, OUTPUT/DEVICE-PRECISION; OUTPUT/matrix.html and matrix.json compare them.
    Run again, it builds only what is missing, failed, or has other settings. A build that fails does not stop the rest.

    Exit status: 0 all are built and pass their gates, 1 some do not.

    Example: intact matrix model.onnx --devices cpu,qnn:v73,qnn:v75 --precisions uint8,w8a16 --data inputs.npz -o out/
    """
    config, path = arguments.settings(values, *SETTINGS), arguments.model_path(values)
    from intact.api import early

    devices, precisions = _listed(values["devices"]), _listed(values["precisions"])
    early.check_cells(devices, precisions, config)
    from intact.api.matrix import matrix
    from intact.cli import console

    output = values["output"]
    outcomes = matrix(
        path,
        devices=devices,
        precisions=precisions,
        output=output,
        workers=values["workers"],
        threads=values["threads"],
        cluster=values["cluster"],
        config=config,
        events=console.Talk(quiet=values["quiet"]),
    )
    if values["as_json"]:
        console.print_json({"source": str(path), "cells": [asdict(outcome) for outcome in outcomes]})
    elif not values["quiet"]:
        _show(outcomes, console.say)
        console.say(f"{output / 'matrix.html'}")
    if any(outcome.status != "built" for outcome in outcomes):
        raise typer.Exit(SOME_FAILED)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _show(outcomes: list[Outcome], say: Callable[[str], None]) -> None:
    from rich.console import Console
    from rich.table import Table

    from intact.reports.figures import decibels, size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("device", "precision", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("SQNR dB", "on NPU", "parts", "size", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in outcomes:
        sqnr = "identical" if cell.identical else "–" if cell.sqnr_db is None else decibels(cell.sqnr_db)
        table.add_row(
            cell.device,
            cell.precision,
            cell.verdict or cell.status,
            sqnr,
            "–" if cell.npu_percent is None else f"{cell.npu_percent:.0f} %",
            "–" if cell.partitions is None else str(cell.partitions),
            "–" if cell.bytes is None else size(cell.bytes),
            "kept" if cell.kept else f"{cell.seconds:.1f} s",
        )
    Console(highlight=False, markup=False).print(table)
    for cell in outcomes:
        if cell.error is not None:
            say(f"{cell.folder}: {cell.error}")
        for reason in cell.verdict_reasons:
            say(f"{cell.folder}: {cell.verdict}: {reason}")
