"""Output appears whole or not at all: built beside its destination, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from intact.errors import OutputError
from intact.results import Artifact


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a destination that is taken or cannot be written."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError("O101", f"{folder} exists and is not a folder", fix="choose another -o")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise OutputError("O102", f"{folder} exists and is not empty", fix="choose another -o, or give --overwrite")
    _check_parent(folder)


def check_file(path: Path, *, overwrite: bool, ours: bool) -> None:
    """Refuse, before any work, to replace a file that intact did not write."""
    if path.is_dir():
        raise OutputError("O103", f"{path} is a folder", fix="give the path of a file")
    if path.exists() and not overwrite and not ours:
        raise OutputError("O104", f"{path} exists, and intact did not write it", fix="give --overwrite to replace it")
    _check_parent(path)


def is_free(output: Path) -> bool:
    """True if nothing lies where a file, weights beside it, or a folder would go."""
    return not any(os.path.lexists(place) for place in _places(output))


def refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse, before any work, an output that would take the place of an input, or of a folder with one in it."""
    places = [place.resolve() for place in _places(output)]
    for given in inputs:
        # Where a link lies counts as much as what it leads to.
        for real in (given.resolve(), given.parent.resolve() / given.name):
            if any(_takes_place_of(place, real) for place in places):
                raise OutputError(
                    "O107",
                    f"{given} is an input, and would be replaced by the output {output}",
                    allowed="an output that is no input, and no folder with an input in it",
                    fix="choose another -o",
                )


@contextmanager
def staged(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place if nothing goes wrong, and vanishes otherwise."""
    folder = folder.resolve()  # "." has no name and no parent to build in
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        work.chmod(0o755)
        yield work
        check_folder(folder, overwrite=overwrite)  # somebody may have put something there in the meantime
        _replace(folder, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def artifacts(folder: Path, kinds: dict[str, str]) -> tuple[Artifact, ...]:
    """The files of a folder that `kinds` names, with size and digest, in the order given."""
    return tuple(_artifact(folder, path, kind) for path, kind in kinds.items())


def _artifact(folder: Path, path: str, kind: str) -> Artifact:
    with open(folder / path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(path, kind, (folder / path).stat().st_size, digest)


def _places(output: Path) -> tuple[Path, Path]:
    """What writing to `output` may replace: itself, and the weights of a model beside it."""
    path = output.absolute()
    return path, path.parent / f"{path.name}.data"


def _takes_place_of(place: Path, given: Path) -> bool:
    """True if `place` is an input or a folder around it, or a file in a folder that is one."""
    inside = given.is_dir() and place.is_file() and place.is_relative_to(given)
    same = given.exists() and place.exists() and given.samefile(place)
    return given.is_relative_to(place) or same or inside


def _replace(folder: Path, work: Path) -> None:
    if not folder.exists():
        work.rename(folder)
        return
    mine = _written_before(folder)
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    folder.rename(old)
    try:
        work.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    # The files of others come last: whatever goes wrong before, they are still where nothing deletes them.
    for foreign in [path for path in old.iterdir() if path.name not in mine]:
        if not (folder / foreign.name).exists():
            foreign.rename(folder / foreign.name)
    shutil.rmtree(old)


def _written_before(folder: Path) -> set[str]:
    """Names in a folder that an earlier build wrote, by its own manifest."""
    manifest = folder / "manifest.json"
    try:
        listed = json.loads(manifest.read_text(encoding="utf-8"))["artifacts"] if manifest.is_file() else []
        return {"manifest.json", *(Path(entry["path"]).parts[0] for entry in listed)}
    except (ValueError, LookupError, TypeError):
        return set()  # not a manifest of ours: nothing in this folder is


def _check_parent(path: Path) -> None:
    parent = next(p for p in (path.absolute().parent, *path.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise OutputError("O105", f"{parent} is not a folder, so {path} cannot be written")
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise OutputError("O106", f"{parent} cannot be written to: {error.strerror}") from None
