"""`intact targets`: the devices to build for."""

from __future__ import annotations

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
            _show(one)


def _show(one: KnownTarget) -> None:
    from intact.cli.console import say, say_items

    say(f"{one.name}: {one.title}")
    say_items(_here(one), (), 2)
    say_items("precisions: ", one.precisions or ["none yet"], 2)
    for arch in one.archs:
        chips = [chip for chip in one.chips if f"v{chip.arch}" == arch]
        names = [f"{chip.name} ({chip.sold_as})" if chip.sold_as else chip.name for chip in chips]
        default = " [default]" if arch == one.default_arch else ""
        say_items(f"{arch}{default}: ", names or ["no chip is listed"], 2)


def _here(one: KnownTarget) -> str:
    if one.missing is not None:
        return f"needs {one.missing}"
    return "builds here, and runs on the vendor's simulator" if one.simulated else "builds here"
