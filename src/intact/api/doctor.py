"""`intact.doctor`: what of intact works on this machine, and what to install for the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Literal

from intact import environment
from intact.backends import first_operator, installed
from intact.errors import IntactError
from intact.events import Events, Silence
from intact.records import dataclass
from intact.runtime import installation, toolchains

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
        """Extras and devices that are installed but do not work."""
        return tuple(one for one in (*self.extras, *self.devices) if one.state == "broken")


def doctor(*, events: Events | None = None) -> Health:
    """Look at versions and extras, and run one operator on every device, vendors' code in child processes."""
    watcher = events or Silence()
    looked = [(name, version) for name in installed.names() for version in (None, *_other_versions(name))]
    devices = []
    with watcher.stage("devices", len(looked)) as advance:
        for name, version in looked:
            devices.append(_device(name, version))
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


def _other_versions(name: str) -> list[str]:
    """Versions of a device's toolchain that are installed in environments of their own, beside the usual one."""
    recipe = installed.find(name).toolchain
    return [] if recipe is None else [one for one in installation.versions(recipe) if one != recipe.version]


def _device(name: str, version: str | None = None) -> Checked:
    called = toolchains.label(name, version)
    try:
        installed.versions(name, version)
    except IntactError as error:
        return Checked(called, "missing", error.message, error.fix or "")
    tried = first_operator.run_one_operator(name, version)
    if tried.outcome in ("runs", "prepared"):
        return Checked(called, "ok", tried.detail)
    return Checked(called, "broken", tried.detail, _remedy(name, version))


def _remedy(name: str, version: str | None) -> str:
    """The command that installs a device's library again."""
    backend = installed.find(name)
    recipe = backend.toolchain
    if recipe is not None and (version is not None or not recipe.beside):
        called = toolchains.label(name, version)
        return f"intact toolchain remove {called}; {recipe.command(version)}"
    return backend.install or "pip install --force-reinstall intact"
