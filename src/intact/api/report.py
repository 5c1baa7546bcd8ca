"""`intact.report`: the page of a build, drawn again from its manifest, or of two builds beside each other."""

from __future__ import annotations

from pathlib import Path

from intact import scratch
from intact.errors import SettingsError
from intact.json_types import JsonObject
from intact.reports import html, integrity, publish, two_builds
from intact.settings.keywords import AnyPath

REPORT = "report.html"


def report(*builds: AnyPath, output: AnyPath | None = None, overwrite: bool = False) -> Path:
    """Draw the report of one build folder again, into it or to `output`; or compare two of them in `output`."""
    folders = [_folder(Path(build)) for build in builds]
    if not 1 <= len(folders) <= 2:
        raise SettingsError("S205", f"{len(folders)} builds were given", allowed="one to draw again, or two to compare")
    if len(folders) == 2 and output is None:
        raise SettingsError("S206", "a comparison of two builds needs a place", fix="add -o compare.html")
    manifests = [_manifest(folder) for folder in folders]
    place = folders[0] / REPORT if output is None else Path(output)
    publish.check_file(place, overwrite=overwrite, ours=output is None)
    if len(manifests) == 1:
        scratch.write_text(place, html.render(manifests[0]))
    else:
        scratch.write_text(place, two_builds.render(manifests[0], manifests[1], _names(*folders)))
    return place


def _folder(given: Path) -> Path:
    """The folder of a build, which may also be named by its manifest."""
    return given.parent if given.name == publish.MANIFEST else given


def _manifest(folder: Path) -> JsonObject:
    return integrity.read(folder / publish.MANIFEST).model_dump(mode="json", by_alias=True)


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The names of two folders, or their paths where those are the same."""
    names = first.resolve().name, second.resolve().name
    return names if names[0] != names[1] else (str(first), str(second))
