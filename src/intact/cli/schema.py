"""`intact schema`: JSON Schemas of the settings and of the manifest."""

from __future__ import annotations

from typing import Annotated

import typer

NAME = "schema"


def run(
    what: Annotated[str, typer.Argument(help="config or manifest.")] = "config",
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")] = False,
) -> None:
    """Print the JSON Schema of the settings file or of the manifest."""
    from intact.api.schema import schema
    from intact.cli import console

    console.print_json(schema(what))
