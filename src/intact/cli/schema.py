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
    from intact.cli import console
    from intact.errors import SettingsError
    from intact.reports import manifest
    from intact.settings.config import BuildConfig

    schemas = {"config": BuildConfig.model_json_schema, "manifest": manifest.schema}
    if what not in schemas:
        raise SettingsError("S144", f"there is no schema of {what!r}", allowed="config, manifest")
    console.print_json(schemas[what]())
