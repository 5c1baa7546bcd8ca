"""`intact explain`: what a code of an error or of `intact lint` means."""

from __future__ import annotations

from typing import Annotated

import typer

NAME = "explain"


def run(
    code: Annotated[str | None, typer.Argument(help="A code, for example M113 or Q103.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print all of lint, as Markdown.")] = False,
) -> None:
    """Explain an error or a finding of lint: what is wrong, why it matters, how to put it right.

    Example: intact explain Q103
    """
    from intact.api.explain import explain
    from intact.errors import SettingsError

    if everything == (code is not None):
        raise SettingsError("S183", "give one code, or --all", fix="intact explain Q103")
    typer.echo(explain(code), nl=code is not None)
