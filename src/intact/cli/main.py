"""The `intact` command. Heavy imports wait until a command runs, so that help is there at once."""

from __future__ import annotations

import atexit
import errno
import gc
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated

import typer

from intact.cli import (
    analyze,
    build,
    compile,
    convert,
    debug,
    doctor,
    encodings,
    explain,
    export,
    init,
    inspect,
    lint,
    log_lines,
    matrix,
    perf,
    plan,
    probe,
    quantize,
    report,
    rewrite,
    schema,
    targets,
    toolchain,
    verify,
)
from intact.cli.panels import PanelCommand, PanelGroup, has_colours

INTERNAL_ERROR = 70

app = typer.Typer(
    cls=PanelGroup,
    help="Quantizes and compiles ONNX models for NPUs, and proves that nothing broke.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit statuses: 0 done · 1 a gate failed · 2 usage or settings · 3 the model is bad · "
    "4 the target cannot take it · 5 the environment",
)
MAY_STAND_ALONE = ("--explain",)
"""Options whose value may be left out, in the middle of a line or at its end."""

# Every command with its summary, by the heading that it stands under.
COMMANDS: dict[str, dict[ModuleType, str]] = {
    "Build": {
        build: "Quantize, compile and verify a model for a device.",
        matrix: "Build for several devices and precisions, to choose from.",
        report: "Draw a build's report again, or compare two builds.",
    },
    "Look": {
        inspect: "Show what is in a model.",
        analyze: "Show which nodes a device takes, and why not the others.",
        lint: "Find and repair what is wrong with a quantized model.",
        explain: "Explain the code of an error or a finding.",
    },
    "Compare": {
        verify: "Compare the outputs of models on the same inputs.",
        debug: "Find where two models part ways, and the worst layers.",
        perf: "Time models beside each other on this machine.",
    },
    "One step at a time": {
        export: "Export a Hugging Face model to ONNX.",
        plan: "Write what would be quantized, to read and edit.",
        quantize: "Quantize a float model.",
        rewrite: "Rewrite a quantized model to the form that a device takes.",
        convert: "Convert between QDQ and QLinear operators.",
        compile: "Compile a model without verifying it.",
    },
    "This machine": {
        doctor: "Check versions, extras and devices.",
        targets: "List devices, chips and precisions.",
        init: "Print or write a settings file, every setting explained.",
        schema: "Print the JSON Schema of settings or manifest.",
        probe: "Ask a vendor's library what it takes.",
    },
}
for heading, commands in COMMANDS.items():
    for command, summary in commands.items():
        add = app.command(command.NAME, cls=PanelCommand, short_help=summary, rich_help_panel=heading)
        add(command.run)
app.add_typer(
    encodings.app,
    name=encodings.NAME,
    short_help="Export encodings, and compare them.",
    rich_help_panel="One step at a time",
)
app.add_typer(
    toolchain.app,
    name=toolchain.NAME,
    short_help="Install, list and remove vendors' toolchains.",
    rich_help_panel="This machine",
)


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


class Interrupted(BaseException):
    """The user, or another program, asked this one to end. No KeyboardInterrupt: typer makes a status of that."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number
        self.word = "interrupted" if number == signal.SIGINT else "terminated"


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: what follows cleans up
    raise Interrupted(number)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: folders that are half written vanish, and children end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the business of the main thread
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run() -> None:
    """Run the command that was typed; what dead commands left is removed first."""
    from intact.scratch import sweep

    sweep(Path(tempfile.gettempdir()))
    with _interruptible():
        if log_lines.wanted():
            _run_for_programs()
        else:
            app(_arguments(sys.argv[1:]))


def _run_for_programs() -> None:
    """Run the command as usual, but report mistakes in its usage as JSON too."""
    try:
        status = app(_arguments(sys.argv[1:]), standalone_mode=False)
    except Exception as error:
        # Such a mistake is an exception of click, which some versions of typer bring along under a name of their own.
        told, code = getattr(error, "format_message", None), getattr(error, "exit_code", None)
        if told is None or code is None:
            raise
        log_lines.write("error", code=None, status=code, message=told())
        sys.exit(code)
    sys.exit(status if isinstance(status, int) else 0)


def _marked(text: str) -> str:
    """Text in bold red where a person reads it on a terminal with colours."""
    return f"\x1b[1;31m{text}\x1b[0m" if has_colours(sys.stderr) else text


def _report(error: Exception) -> int:
    """Say on stderr what went wrong; return the exit status."""
    from intact.errors import IntactError, printable
    from intact.scratch import refusal

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        error = refusal(error.filename or "the output", error)
    if log_lines.wanted():
        return _report_line(error)
    if isinstance(error, IntactError):
        sys.stderr.write(_marked(f"error[{error.code}]") + printable(f": {error.text()}\n"))
        return error.status
    told = f"internal error: {type(error).__name__}: {error}\n  fix: run again with --debug and report\n"
    sys.stderr.write(printable(told))
    return INTERNAL_ERROR


def _report_line(error: Exception) -> int:
    """The same for programs: the parts of an error as they are."""
    from intact.errors import IntactError

    if not isinstance(error, IntactError):
        log_lines.write("error", code=None, status=INTERNAL_ERROR, message=f"{type(error).__name__}: {error}")
        return INTERNAL_ERROR
    parts = {name: getattr(error, name) for name in ("code", "status", "message", "allowed", "source", "fix", "files")}
    log_lines.write("error", **parts)
    return error.status


def main() -> None:
    """Run the command line; an error of the user's is a sentence and an exit status, never a traceback."""
    # Before it ends, Python looks for cycles among all that was ever imported, three times: an eighth of a second.
    atexit.register(gc.freeze)
    traceback = "--debug" in sys.argv
    try:
        _run()
    except Exception as error:
        if traceback:
            raise
        sys.exit(_report(error))
    except Interrupted as end:
        if log_lines.wanted():
            log_lines.write("error", code=None, status=end.status, message=end.word)
        else:
            sys.stderr.write(f"{end.word}\n")
        sys.exit(end.status)
