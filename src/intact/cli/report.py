"""`intact report`: the page of a build, drawn again, or two builds compared."""

from __future__ import annotations

from pathlib import Path

import typer

from intact.cli.options import TALK, Flags, Option, option, takes

NAME = "report"
BUILDS = (
    Option("builds", list[Path], typer.Argument(help="The folder of a build, or of two.", show_default=False)),
    option("output", "The page to write. [default: report.html in the folder]", Path | None, "-o", "--output"),
    option("overwrite", "Replace what is there.", bool),
)


@takes(BUILDS, TALK)
def run(values: Flags) -> None:
    """Draw a build's report again, or compare two builds.

    Examples: intact report output/; intact report a/ b/ -o compare.html
    """
    from intact.api.report import report
    from intact.cli import console

    place = report(*values["builds"], output=values.get("output"), overwrite=values["overwrite"])
    if values["as_json"]:
        console.print_json({"output": str(place)})
    elif not values["quiet"]:
        console.say(str(place))
