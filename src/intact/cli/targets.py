"""`intact targets`: the devices to build for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from intact.cli.options import TALK, Flags, takes

if TYPE_CHECKING:
    from intact.api.targets import KnownTarget

NAME = "targets"


@takes(TALK)
def run(values: Flags) -> None:
    """List devices, their chips and precisions, and what runs here.

    Chips go by their part number or by the name that they are sold as: --soc SM8650 or --soc "Snapdragon 8 Gen 3".
    """
    from intact.api.targets import list_targets
    from intact.cli import console

    found = list_targets()
    if values["as_json"]:
        console.print_json({"targets": [asdict(one) for one in found]})
    elif not values["quiet"]:
        for one in found:
            _show(one, console.say)


def _show(one: KnownTarget, say: Callable[[str], None]) -> None:
    say(f"{one.name}: {one.title}")
    say(f"  {_here(one)}")
    say(f"  precisions: {', '.join(one.precisions) or 'none yet'}")
    for arch in one.archs:
        chips = [f"{chip.name}{f' ({chip.sold_as})' if chip.sold_as else ''}" for chip in one.chips]
        of_arch = [text for text, chip in zip(chips, one.chips, strict=True) if f"v{chip.arch}" == arch]
        default = " [default]" if arch == one.default_arch else ""
        say(f"  {arch}{default}: {', '.join(of_arch) or 'no chip is listed'}")


def _here(one: KnownTarget) -> str:
    if one.missing is not None:
        return f"needs {one.missing}"
    return "builds here, and runs on the vendor's simulator" if one.simulated else "builds here"
