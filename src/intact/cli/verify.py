"""`intact verify`: two models, the same inputs, and how far apart their outputs are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "verify"


def run(
    reference: Annotated[Path, typer.Argument(help="The model to compare with.", show_default=False)],
    candidate: Annotated[Path, typer.Argument(help="The model to check.", show_default=False)],
    data: Annotated[str | None, typer.Option(help="Inputs: an .npz keyed by input name, or module:function.")] = None,
    test_data: Annotated[str | None, typer.Option(help="Inputs that are all for verification.")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture of the simulator. [default: v73]")] = None,
    soc: Annotated[str | None, typer.Option(help="Chip of the simulator, for example SM8550.")] = None,
    min_sqnr: Annotated[float | None, typer.Option(help="Gate: least SQNR in dB of every output.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")] = False,
) -> None:
    """Compare the outputs of two models on the same inputs.

    Of --data the rows are used that a build with the same flags would hold back.
    An EPContext model runs on the vendor's simulator, any other on the CPU without optimizations.

    Example: intact verify model.onnx output/model.onnx --data inputs.npz --min-sqnr 30
    """
    from intact import pipeline
    from intact.cli import console, summary
    from intact.config import BuildConfig, CompileConfig
    from intact.errors import GateFailed

    talk = console.Talk(quiet=quiet)
    config = BuildConfig(min_sqnr=min_sqnr, compile=CompileConfig(device="qnn", arch=arch, soc=soc))
    rows, gate = pipeline.verify_files(
        reference, candidate, data_path=data, test_path=test_data, config=config, events=talk
    )
    if as_json:
        console.print_json(summary.verification(rows, gate))
    elif not quiet:
        summary.show_accuracy(rows)
    if gate is not None and not gate.passed:
        raise GateFailed("G101", f"{gate.name}: {gate.detail}", allowed=f"{gate.name} {gate.limit:g}")
