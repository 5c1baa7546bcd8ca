"""`intact.doctor`: what of intact works on this machine, and what to install for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from intact import environment
from intact.backends import first_operator, installed
from intact.errors import IntactError
from intact.events import Events, Silence

State = Literal["ok", "missing", "broken"]
# `torch<3,>=2.9; extra == 'hf'`, as the metadata of a package says it.
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*;.*extra\s*==\s*['\"]([\w-]+)['\"]")
# Extras for those who work on intact.
_NOT_FOR_USERS = ("test",)


@dataclass(frozen=True, slots=True)
class Checked:
    """Something that was looked at: its state, what was found, and the command that mends it."""

    name: str
    state: State
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The versions of what intact stands on, its extras, and every device after one operator ran on it."""

    versions: dict[str, str]
    extras: tuple[Checked, ...]
    devices: tuple[Checked, ...]

    @property
    def broken(self) -> tuple[Checked, ...]:
        """What is installed and does not work."""
        return tuple(one for one in (*self.extras, *self.devices) if one.state == "broken")


def doctor(*, events: Events | None = None) -> Health:
    """Look at versions and extras, and run one operator on every device, vendors' code in child processes."""
    watcher, names = events or Silence(), installed.names()
    devices = []
    with watcher.stage("devices", len(names)) as advance:
        for name in names:
            devices.append(_device(name))
            advance()
    return Health(environment.versions(), tuple(_extras()), tuple(devices))


def _extras() -> Iterator[Checked]:
    needed: dict[str, list[str]] = {}
    for text in metadata.requires("intact") or []:
        if (found := _REQUIREMENT.match(text)) and found[2] not in _NOT_FOR_USERS:
            needed.setdefault(found[2], []).append(found[1])
    for extra, packages in needed.items():
        versions = {package: _version(package) for package in packages}
        missing = [package for package, version in versions.items() if version is None]
        if missing:
            yield Checked(extra, "missing", f"{', '.join(missing)} not installed", f"pip install 'intact[{extra}]'")
        else:
            yield Checked(extra, "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device(name: str) -> Checked:
    try:
        installed.versions(name)
    except IntactError as error:
        return Checked(name, "missing", error.message, error.fix or "")
    tried = first_operator.run_one_operator(name)
    if tried.outcome in ("runs", "prepared"):
        return Checked(name, "ok", tried.detail)
    return Checked(name, "broken", tried.detail, installed.find(name).install or "pip install --force-reinstall intact")
