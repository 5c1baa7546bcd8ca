"""`intact encodings`: the grids of a quantized model, for other tools and against other tools'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from intact.cli import arguments, log_lines

NAME = "encodings"
THEY_DIFFER = 1

app = typer.Typer(
    help="Export the encodings of a quantized model, and compare encodings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")]
LogJson = Annotated[bool, typer.Option(log_lines.FLAG, help="Write warnings and errors as JSON, one a line on stderr.")]
Grids = "An encodings file (JSON), or a model with Q/DQ nodes (.onnx)."


@app.command("export")
def export(
    model: Annotated[Path, typer.Argument(help="The quantized model, with Q/DQ nodes.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the file goes.", show_default=False)],
    form: Annotated[
        str, typer.Option("--format", help="aimet (1.0.0), aimet-0.6.1, aimet-1.0.0, aimet-2.0.0 or ort.")
    ] = "aimet",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    as_json: Json = False,
    log_json: LogJson = False,
    debug: Debug = False,
) -> None:
    """Write the encodings of a quantized model as AIMET or ONNX Runtime read them.

    Example: intact encodings export output/model.qdq.onnx --format aimet -o encodings.json
    """
    arguments.there(model)
    from intact.api.encodings import encodings
    from intact.cli import console

    found = encodings(model, output=output, format=form, overwrite=overwrite, events=console.Talk())
    result = {"model": str(model), "output": str(output), "format": form, "tensors": found.tensors}
    console.print_json(result) if as_json else console.say(f"{found.tensors} encodings: {output}")


@app.command("diff")
def diff(
    a: Annotated[Path, typer.Argument(help=Grids, show_default=False)],
    b: Annotated[Path, typer.Argument(help=Grids, show_default=False)],
    as_json: Json = False,
    log_json: LogJson = False,
    debug: Debug = False,
) -> None:
    """Show the tensors whose encodings differ, and by how much; the exit status is 1 if there are any.

    Example: intact encodings diff output/model.qdq.onnx encodings.json
    """
    from dataclasses import asdict

    arguments.there(a, b)
    from intact.api.encodings import encoding_differences
    from intact.cli import console

    found = encoding_differences(a, b)
    if as_json:
        console.print_json({"a": str(a), "b": str(b), "differences": [asdict(entry) for entry in found]})
    else:
        _show([(entry.tensor, entry.what) for entry in found], console.say)
    if found:
        raise typer.Exit(THEY_DIFFER)


def _show(rows: list[tuple[str, str]], say: Callable[[str], None]) -> None:
    for tensor, what in rows:
        say(f"{tensor}: {what}")
    say(
        f"{len(rows)} tensor{'' if len(rows) == 1 else 's'} differ{'s' if len(rows) == 1 else ''}"
        if rows
        else "the same"
    )
