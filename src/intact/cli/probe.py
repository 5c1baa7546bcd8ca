"""`intact probe`: asks the vendor's library what it takes, operator by operator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from intact.cli.options import CLUSTER, TALK, Flags, option, takes

NAME = "probe"
PROBE = (
    option("device", "A device whose vendor has a library to ask. [default: qnn]"),
    option("op", "Ask about this operator only; repeatable.", list[str] | None, metavar="TYPE"),
    option(
        "type",
        "With --numeric: ask about activations of this type only, as uint16; repeatable.",
        list[str] | None,
        metavar="DTYPE",
    ),
    option("arch", "Architectures, as v68,v73, or chips, as rk3588,rv1106. [default: all]"),
    option("numeric", "Find where the simulator computes something else, and write the regions.", bool),
    option("output", "The file of answers; it is continued.", Path, "-o", "--output"),
    option("workers", "Processes at a time. [default: 2]", int | None),
)


@takes(PROBE, CLUSTER, TALK)
def run(values: Flags) -> None:
    """Ask the vendor's library about every operator and type, and write its answers with its version.

    A whole library takes many minutes; --op and --arch ask for less. An interrupted run goes on where it stopped:
    answers of the same version in the file are kept.

    Examples: intact probe --device qnn --op Conv --arch v68,v73 -o answers.json;
    intact probe --numeric --op Softmax --arch v73 -o wrong.json
    """
    from intact.api.probe import DEFAULT_DEVICE, probe
    from intact.cli import console

    archs = None if values["arch"] is None else [name.strip() for name in values["arch"].split(",")]
    found = probe(
        device=values["device"] or DEFAULT_DEVICE,
        op=values["op"],
        type=values["type"],
        arch=archs,
        numeric=bool(values["numeric"]),
        output=values["output"],
        workers=values["workers"],
        cluster=values["cluster"],
        events=console.Talk(quiet=values["quiet"] or values["as_json"]),
    )
    if values["as_json"]:
        wrong = [asdict(region) for region in found.wrong]
        console.print_json(
            {"library": found.library, "output": str(found.output), "answers": found.answers, "wrong": wrong}
        )
    elif not values["quiet"]:
        for region in found.wrong:
            console.say(str(region))
        counts = ", ".join(f"{count} {name}" for name, count in found.answers.items())
        console.say(f"{found.library}: {counts}: {found.output}")
