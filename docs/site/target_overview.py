"""The page that lists devices, chips and precisions, from their tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from intact.api.targets import KnownTarget, list_targets

PAGES = Path(__file__).resolve().parents[1] / "targets"
HEAD = """\
# Targets

Made from the tables of the devices that intact brings along; `intact targets` prints the same, and what is installed
here. `--soc` takes a chip by its part number or by the name that it is sold as.
"""


def targets_page() -> str:
    """Every device with its precisions, and its chips by architecture."""
    return HEAD + "".join(part for target in list_targets() for part in _target(target))


def _target(target: KnownTarget) -> Iterator[str]:
    yield f"\n## {target.name}\n\n{target.title}"
    yield ", with the vendor's simulator" if target.simulated else ""
    yield f". Precisions: {', '.join(f'`{name}`' for name in target.precisions)}.\n\n"
    links = {f"{target.name}.md": "What it takes", f"{target.name}-where-it-is-wrong.md": "where it is wrong"}
    yield " · ".join(f"[{words}](../targets/{name})" for name, words in links.items() if (PAGES / name).is_file())
    yield "\n"
    if target.chips:
        yield "\n| architecture | chips |\n| --- | --- |\n"
    for arch in target.archs if target.chips else ():
        named = [
            f"{chip.name} ({chip.sold_as})" if chip.sold_as else chip.name
            for chip in target.chips
            if f"v{chip.arch}" == arch
        ]
        default = ", the default" if arch == target.default_arch else ""
        yield f"| {arch}{default} | {', '.join(named)} |\n"
