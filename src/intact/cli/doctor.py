"""`intact doctor`: what works on this machine, and what to install for the rest."""

from __future__ import annotations

from dataclasses import asdict

import typer

from intact.cli.options import TALK, Flags, takes

NAME = "doctor"
BROKEN = 5
_MARKS = {"ok": "✓", "missing": "–", "broken": "✗"}


@takes(TALK)
def run(values: Flags) -> None:
    """Check this machine: versions, extras, and one operator on every device.

    Vendors' libraries are loaded in child processes. Exit status: 5 if something that is installed does not work.
    """
    from intact.api.doctor import doctor
    from intact.cli import console

    found = doctor(events=console.Talk(quiet=values["quiet"] or values["as_json"]))
    if values["as_json"]:
        console.print_json(asdict(found))
    elif not values["quiet"]:
        console.say_items("", [f"{name} {version}" for name, version in found.versions.items()])
        for title, rows in (("extras", found.extras), ("devices", found.devices)):
            console.say(f"{title}:")
            for one in rows:
                console.say_items(f"{_MARKS[one.state]} {one.name}: {one.found}", (), 2)
                if one.fix:
                    console.say(f"      {one.fix}")
    if found.broken:
        raise typer.Exit(BROKEN)
