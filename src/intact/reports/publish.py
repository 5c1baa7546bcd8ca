"""Output appears whole or not at all: built beside its destination, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from intact import scratch
from intact.errors import OutputError
from intact.reports import exchange
from intact.results import Artifact

MANIFEST = "manifest.json"

Tell = Callable[[str], None]


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a destination that is taken or cannot be written."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError("O101", f"{folder} exists and is not a folder", fix="choose another -o")
    if folder.is_dir() and not overwrite and any(not scratch.is_ours(path.name) for path in folder.iterdir()):
        raise OutputError("O102", f"{folder} exists and is not empty", fix="choose another -o, or give --overwrite")
    if is_fixed(folder):
        _check_writable(folder)
    else:
        _check_parent(folder)


def check_file(path: Path, *, overwrite: bool, ours: bool) -> None:
    """Refuse, before any work, to replace a file that intact did not write."""
    if path.is_dir():
        raise OutputError("O103", f"{path} is a folder", fix="give the path of a file")
    if path.exists() and not path.is_file():
        # Files appear by a rename, which would put one in the place of the device itself.
        raise OutputError("O103", f"{path} is not an ordinary file", fix="give the path of a file")
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
def staged(folder: Path, *, overwrite: bool = False, tell: Tell = lambda _: None) -> Iterator[Path]:
    """A new folder that takes the place of `folder` if nothing goes wrong, and vanishes otherwise.

    It is built beside `folder` and takes its place in one step. A folder that cannot be exchanged is filled instead:
    its files are replaced one by one, each whole. The manifest goes first and comes back last, so that a folder with
    a manifest is complete. `tell` gets a sentence about that.
    """
    folder = folder.resolve()  # "." has no name and no parent to build in
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch.folder("output", folder if is_fixed(folder) else folder.parent) as work:
        work.chmod(0o755)
        yield work
        check_folder(folder, overwrite=overwrite)  # somebody may have put something there in the meantime
        if not _replaced(folder, work):
            tell(f"{folder} cannot be exchanged as a whole: its files were replaced one by one, {MANIFEST} last")


def is_fixed(folder: Path) -> bool:
    """True if a folder that is there can only be filled: a mount point, a root, or one in a folder that is closed."""
    return folder.is_dir() and (os.path.ismount(folder) or not os.access(folder.resolve().parent, os.W_OK | os.X_OK))


def artifacts(folder: Path, kinds: dict[str, str]) -> tuple[Artifact, ...]:
    """The files of a folder that `kinds` names, with size and digest, in the order given."""
    return tuple(_artifact(folder, path, kind) for path, kind in kinds.items())


def _artifact(folder: Path, path: str, kind: str) -> Artifact:
    with open(folder / path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(path, kind, (folder / path).stat().st_size, digest)


def _places(output: Path) -> tuple[Path, Path]:
    """The files that writing to `output` may replace: itself, and the weights of a model beside it."""
    path = output.absolute()
    return path, path.parent / f"{path.name}.data"


def _takes_place_of(place: Path, given: Path) -> bool:
    """True if `place` is an input or a folder around it, or a file in a folder that is one."""
    inside = given.is_dir() and place.is_file() and place.is_relative_to(given)
    same = given.exists() and place.exists() and given.samefile(place)
    return given.is_relative_to(place) or same or inside


def _replaced(folder: Path, work: Path) -> bool:
    """Put `work` in the place of `folder`, with what others wrote there; False if that took more than one step."""
    if not folder.exists():
        work.rename(folder)
        return True
    mine = _written_before(folder)
    if is_fixed(folder):
        _fill(folder, work, mine)
        return False
    try:
        _link_foreign(folder, work, mine)
        exchange.swap(work, folder)
    except OSError:  # a file system that cannot do so, or a mount point inside
        _fill(folder, work, mine)
        return False
    # Under the name of `work` is now the old folder. Files that came in the meantime are not lost with it.
    for foreign in _foreign(work, mine):
        if not os.path.lexists(folder / foreign.name):
            foreign.rename(folder / foreign.name)
    return True


def _fill(folder: Path, work: Path, mine: set[str]) -> None:
    """Move the content of `work` into `folder`, file by file; what an earlier build wrote and this one did not goes."""
    (folder / MANIFEST).unlink(missing_ok=True)
    new = {path.name for path in work.iterdir()}
    for stale in (folder / name for name in mine - new):
        shutil.rmtree(stale) if stale.is_dir() and not stale.is_symlink() else stale.unlink(missing_ok=True)
    for name in sorted(new, key=lambda name: name == MANIFEST):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)
        os.replace(work / name, folder / name)


def _link_foreign(folder: Path, work: Path, mine: set[str]) -> None:
    """Give what others wrote a second name in `work`, so that it is in either folder whatever happens."""
    for foreign in _foreign(folder, mine):
        if os.path.lexists(work / foreign.name):
            continue
        if foreign.is_dir() and not foreign.is_symlink():
            shutil.copytree(foreign, work / foreign.name, symlinks=True, copy_function=_link)
        else:
            _link(foreign, work / foreign.name)


def _link(source: str | Path, target: str | Path) -> None:
    os.link(source, target, follow_symlinks=False)


def _foreign(folder: Path, mine: set[str]) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in mine and not scratch.is_ours(path.name)]


def _written_before(folder: Path) -> set[str]:
    """Names in a folder that an earlier build wrote, by its own manifest."""
    manifest = folder / MANIFEST
    try:
        listed = json.loads(manifest.read_text(encoding="utf-8"))["artifacts"] if manifest.is_file() else []
        named = {Path(entry["path"]).parts[0] for entry in listed}
        return {MANIFEST, *(name for name in named if name not in ("..", "/"))}
    except (ValueError, LookupError, TypeError):
        return set()  # not a manifest of ours: nothing in this folder is


def _check_parent(path: Path) -> None:
    parent = next(p for p in (path.absolute().parent, *path.absolute().parents) if p.exists())
    if not parent.is_dir():
        raise OutputError("O105", f"{parent} is not a folder, so {path} cannot be written")
    _check_writable(parent)


def _check_writable(parent: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise OutputError("O106", f"{parent} cannot be written to: {error.strerror}") from None
