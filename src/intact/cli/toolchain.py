"""`intact toolchain`: vendors' compilers and simulators in environments of their own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from intact.cli import log_lines

NAME = "toolchain"

app = typer.Typer(
    help="Install, list and remove vendors' toolchains, each in an environment of its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(help="A device, such as rknn; another version of its library as qnn@2.6.0.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print warnings and errors only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")]
LogJson = Annotated[bool, typer.Option(log_lines.FLAG, help="Write warnings and errors as JSON, one a line on stderr.")]


@app.command("install")
def install(
    name: Name,
    python: Annotated[
        str | None, typer.Option("--python", help="The Python to make it with. [default: ours, or one that fits]")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    log_json: LogJson = False,
    debug: Debug = False,
) -> None:
    """Make an environment in the user's cache, with pinned packages, and compile one operator in it.

    This is the one command for it that uses the network: pip fetches the packages from where it is set to.

    Examples: intact toolchain install rknn; intact toolchain install qnn@2.6.0
    """
    from intact.api.toolchain import install_toolchain
    from intact.cli import console

    found = install_toolchain(name, python=python, events=console.Talk(quiet=quiet or as_json))
    if as_json:
        console.print_json(asdict(found))
    elif not quiet:
        console.say(f"{found.name}: version {found.version} compiles an operator: {found.path}")


@app.command("list")
def list_(as_json: Json = False, log_json: LogJson = False, debug: Debug = False) -> None:
    """List toolchains that have environments of their own, and those that are missing."""
    from intact.api.toolchain import list_toolchains
    from intact.cli import console

    found = list_toolchains()
    if as_json:
        console.print_json({"toolchains": [asdict(one) for one in found]})
        return
    for one in found:
        told = f"{one.version}, {one.path}" if one.installed else f"not installed: intact toolchain install {one.name}"
        console.say(f"{'✓' if one.installed else '–'} {one.name}: {told}")
    if not found:
        console.say("no device needs a toolchain of its own")


@app.command("remove")
def remove(
    name: Name, as_json: Json = False, quiet: Quiet = False, log_json: LogJson = False, debug: Debug = False
) -> None:
    """Delete an environment that `intact toolchain install` made, or half of one."""
    from intact.api.toolchain import remove_toolchain
    from intact.cli import console

    folder = remove_toolchain(name)
    if as_json:
        console.print_json({"name": name, "removed": str(folder)})
    elif not quiet:
        console.say(f"{name} is gone: {folder}")
