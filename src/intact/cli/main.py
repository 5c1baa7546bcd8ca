"""The `intact` command. Heavy imports wait until a command runs, so that help is there at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

import typer

from intact.cli import (
    analyze,
    build,
    compile,
    convert,
    debug,
    encodings,
    explain,
    export,
    inspect,
    lint,
    matrix,
    perf,
    plan,
    probe,
    quantize,
    rewrite,
    schema,
    verify,
)

INTERNAL_ERROR = 70

app = typer.Typer(
    help="Quantizes and compiles ONNX models for NPUs, and proves that nothing broke.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit statuses: 0 done · 1 a gate failed · 2 usage or settings · 3 the model is bad · "
    "4 the target cannot take it · 5 the environment",
)
MAY_STAND_ALONE = ("--explain",)
"""Options whose value may be left out, in the middle of a line or at its end."""

for command in (
    build,
    matrix,
    plan,
    quantize,
    rewrite,
    convert,
    compile,
    verify,
    perf,
    debug,
    analyze,
    inspect,
    lint,
    probe,
    explain,
    export,
    schema,
):
    app.command(command.NAME)(command.run)
app.add_typer(encodings.app, name=encodings.NAME)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"intact {version('intact')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    return


def _arguments(typed: Sequence[str]) -> list[str]:
    """Add an empty value to what was typed where one may be left out and is: typer has no such options."""
    pairs = zip_longest(typed, typed[1:], fillvalue="-")
    return [f"{word}=" if word in MAY_STAND_ALONE and after.startswith("-") else word for word, after in pairs]


def main() -> None:
    """Run the command line; an error of the user's is a sentence and an exit status, never a traceback."""
    traceback = "--debug" in sys.argv
    try:
        app(_arguments(sys.argv[1:]))
    except Exception as error:
        from intact.errors import IntactError

        if traceback:
            raise
        if isinstance(error, IntactError):
            sys.stderr.write(f"error[{error.code}]: {error.text()}\n")
            sys.exit(error.status)
        sys.stderr.write(f"internal error: {type(error).__name__}: {error}\n  fix: run again with --debug and report\n")
        sys.exit(INTERNAL_ERROR)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
