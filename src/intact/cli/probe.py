"""`intact probe`: asks the vendor's library what it takes, operator by operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from intact.cli.options import TALK, Option, takes

NAME = "probe"
DEFAULT = "qnn"
PROBE = (
    Option("device", str | None, typer.Option("--device", help="qnn or openvino. [default: qnn]", show_default=False)),
    Option("op", list[str] | None, typer.Option("--op", help="Ask about this operator only; repeatable.")),
    Option("arch", str | None, typer.Option("--arch", help="Architectures, as v68,v73. [default: all]")),
    Option("output", Path | None, typer.Option("-o", "--output", help="The file of answers; it is continued.")),
    Option("workers", int | None, typer.Option("--workers", help="Processes at a time. [default: 2]")),
)


@takes(PROBE, TALK)
def run(values: dict[str, Any]) -> None:
    """Ask the vendor's library about every operator and type, and write its answers with its version.

    An interrupted run goes on where it stopped: answers of the same version in the file are kept.

    Example: intact probe --device qnn --op Conv --arch v68,v73 -o answers.json
    """
    from intact.backends import probing
    from intact.backends.probing.answers import Probed
    from intact.backends.probing.cases import cases
    from intact.backends.probing.libraries import library_of
    from intact.cli import console
    from intact.errors import SettingsError

    device = values["device"] or DEFAULT
    library = library_of(device)
    archs = _archs(device, values["arch"])
    asked = cases(values["op"])
    if not asked:
        raise SettingsError("S192", f"--op {', '.join(values['op'])}: no case asks about it")
    output: Path = values["output"] or Path(f"{device}-{library.version()}.json")
    known = Probed.read(output) if output.exists() else None
    talk = console.Talk(quiet=values["quiet"] or values["as_json"])

    def progress(done: int, total: int, so_far: Probed) -> None:
        so_far.write(output)
        talk.note(f"{done} of {total} questions answered")

    workers = values["workers"] or probing.WORKERS
    found = probing.probe(device, asked, archs, known=known, progress=progress, workers=workers)
    found.write(output)
    verdicts = [answer.verdict for row in found.answers.values() for answer in row.values()]
    counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    if values["as_json"]:
        console.print_json({"library": found.library, "output": str(output), "answers": counts})
    elif not values["quiet"]:
        console.say(f"{found.library}: {', '.join(f'{count} {name}' for name, count in counts.items())}: {output}")


def _archs(device: str, given: str | None) -> list[int] | None:
    from intact.targets.registry import load_target

    if given is None:
        return None
    numbers = [load_target(device, arch=name.strip()).arch for name in given.split(",")]
    return [number for number in numbers if number is not None]
