"""A build after the fact: its files against the digests in its manifest, and its versions against those here."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Literal

from intact.errors import SettingsError
from intact.records import dataclass
from intact.reports.manifest import Manifest
from intact.results import Artifact
from intact.settings import hand_written

State = Literal["same", "changed", "missing", "outside"]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file of a build, and what became of it."""

    path: str
    state: State


@dataclass(frozen=True, slots=True)
class VersionDrift:
    """A package that took part in a build in another version than is here; None where it is not installed."""

    package: str
    then: str
    now: str | None


@dataclass(frozen=True, slots=True)
class Integrity:
    """The files of a build as they are now, and the versions that have changed since."""

    manifest: Path
    files: tuple[CheckedFile, ...]
    drift: tuple[VersionDrift, ...]

    @property
    def damaged(self) -> tuple[CheckedFile, ...]:
        """The files that are not as they were built."""
        return tuple(file for file in self.files if file.state != "same")


def check(path: Path) -> Integrity:
    """Hash every file that a manifest lists again, and compare the versions that it names with those here."""
    built = read(path)
    files = tuple(CheckedFile(item.path, _state(path.parent, item)) for item in built.artifacts)
    now = {name: _version(name) for name in built.environment}
    drift = [VersionDrift(name, then, now[name]) for name, then in built.environment.items() if now[name] != then]
    return Integrity(path, files, tuple(drift))


def read(path: Path) -> Manifest:
    """The manifest at `path`; a file that is none is refused."""
    try:
        return Manifest.model_validate_json(hand_written.read(path))
    except OSError as error:
        raise SettingsError("S176", f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SettingsError(
            "S176", f"{path}: is not a manifest of intact", fix="give manifest.json of a build"
        ) from None


def _state(folder: Path, item: Artifact) -> State:
    named = PurePosixPath(item.path)
    place = folder / named
    if named.is_absolute() or ".." in named.parts or not place.resolve().is_relative_to(folder.resolve()):
        return "outside"
    if not place.is_file():
        return "missing"
    with open(place, "rb") as file:
        return "same" if hashlib.file_digest(file, "sha256").hexdigest() == item.sha256 else "changed"


def _version(name: str) -> str | None:
    system = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    if name in system:
        return system[name]
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
