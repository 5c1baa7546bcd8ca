"""Makes the site's pages that are not files of docs/: those beside the README, and the reference drawn from the code.

Links stay as they are in the repository, where they have to work too; here they are led to the place of each file in
the site. What a page links to that is no page (a licence, a figure of a benchmark) goes into the site as it is.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from code_pages import codes_page
from command_pages import commands_page
from function_pages import python_page
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from setting_pages import settings_page
from target_overview import targets_page

ROOT = Path(__file__).resolve().parents[2]
# Pages outside docs/, by their place in the site.
MOVED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "peers.md": "bench/RESULTS.md",
    "stage_times.md": "bench/STAGE_TIMES.md",
    **{
        f"examples/{path.parent.name}.md": f"examples/{path.parent.name}/README.md"
        for path in ROOT.glob("examples/*/README.md")
    },
}
GENERATED = {
    "reference/commands.md": commands_page,
    "reference/python.md": python_page,
    "reference/settings.md": settings_page,
    "reference/codes.md": codes_page,
    "reference/targets.md": targets_page,
}
LINK = re.compile(r"(\]\()([^()\s#]+)((?:#[^()\s]*)?\))")
FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """List the pages of docs/targets in the navigation: a new device brings its own."""
    targets = next(part["Targets"] for part in config.nav if "Targets" in part)
    targets += sorted(f"targets/{path.name}" for path in (ROOT / "docs/targets").glob("*.md"))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here, and the files that pages link to."""
    for place, source in MOVED.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for place, make in GENERATED.items():
        files.append(File.generated(config, place, content=make()))
    pages = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    known = {file.src_uri for file in files}
    wanted = {place: path for uri, text in pages.items() for path, place in _targets(uri, text) if place not in known}
    for place, path in wanted.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Lead links to the place of each file in the site; code is left alone."""
    held: list[str] = []

    def keep(found: re.Match[str]) -> str:
        held.append(found[0])
        return f"\0{len(held) - 1}\0"

    def lead(found: re.Match[str]) -> str:
        place = _place(page.file.src_uri, found[2])
        here = posixpath.dirname(page.file.src_uri)
        return found[0] if place is None else f"{found[1]}{posixpath.relpath(place, here or '.')}{found[3]}"

    led = LINK.sub(lead, FENCE.sub(keep, markdown))
    return re.sub("\0(\\d+)\0", lambda found: held[int(found[1])], led)


def _targets(uri: str, text: str) -> Iterator[tuple[str, str]]:
    """The files of the repository that a page links to, each with its place in the site."""
    for _, target, _ in LINK.findall(FENCE.sub("", text)):
        place = _place(uri, target)
        if place is not None:
            yield _path(uri, target), place


def _path(uri: str, target: str) -> str:
    """The path in the repository that a link of a page means."""
    source = MOVED.get(uri, f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _place(uri: str, target: str) -> str | None:
    """The place in the site of what a page links to; None where that is no file of the repository."""
    path = _path(uri, target)
    if ":" in target or path.startswith("..") or not (ROOT / path).is_file():
        return None
    moved = {source: place for place, source in MOVED.items()}
    return moved.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}")
