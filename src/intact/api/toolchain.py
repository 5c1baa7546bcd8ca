"""Vendors' toolchains in environments of their own: `intact.install_toolchain`, `list_toolchains`, `remove_toolchain`.

A toolchain goes by the name of its device, with a version where that is not the usual one: `rknn`, `qnn@2.6.0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from intact.backends import installed
from intact.errors import NotAvailable, SettingsError
from intact.events import Events, Silence
from intact.records import dataclass
from intact.runtime import installation, toolchains
from intact.runtime.toolchains import Recipe, Toolchain

# Of versions as packages have them: no separators of folders, and nothing that pip would take for an option.
_VERSION = re.compile(r"[0-9][0-9A-Za-z.!+]*")


@dataclass(frozen=True, slots=True)
class KnownToolchain:
    """A toolchain that a device needs, or another version of it: `version` and `path` are None where it is not here."""

    name: str
    installed: bool
    version: str | None = None
    path: str | None = None


def install_toolchain(name: str, *, python: str | None = None, events: Events | None = None) -> KnownToolchain:
    """Make an environment for a toolchain in the user's cache, and compile one operator with it.

    The requirements are pinned; pip fetches them from where it is set to. `python` is the interpreter to make it with.
    """
    recipe, version = _asked(name)
    return _row(name, installation.install(recipe, version, python, events or Silence()))


def list_toolchains() -> list[KnownToolchain]:
    """Every toolchain that a device may need, and further versions that are installed; nothing is run."""
    return [row for _, recipe in _recipes() for row in _rows(recipe)]


def remove_toolchain(name: str) -> Path:
    """Delete the environment that intact made for a toolchain; returns its folder."""
    recipe, version = _asked(name)
    gone = installation.remove(recipe, version)
    if gone is None:
        here = [row.name for row in _rows(recipe) if row.installed]
        elsewhere = f"; the one that {recipe.variable} names is not intact's to remove" if _named(recipe) else ""
        raise NotAvailable(
            "E170",
            f"{toolchains.place(recipe, version)}: {name} is not installed there{elsewhere}",
            allowed=", ".join(here) or "nothing: no toolchain of this device is installed",
        )
    return gone


def _recipes() -> Iterator[tuple[str, Recipe]]:
    yield from ((name, backend.toolchain) for name, backend in installed.every() if backend.toolchain is not None)


def _asked(name: str) -> tuple[Recipe, str]:
    """The recipe and the version that a name stands for."""
    device, _, version = name.partition("@")
    known = dict(_recipes())
    if device not in known:
        raise SettingsError("S210", f"{name}: no toolchain has this name", allowed=", ".join(known))
    recipe = known[device]
    if "@" in name and not _VERSION.fullmatch(version):
        raise SettingsError("S211", f"{name}: {version!r} is no version", allowed=f"such as {device}@2.5.0")
    if not version and recipe.version is None:
        here = ", ".join(toolchains.label(device, one) for one in installation.versions(recipe))
        raise SettingsError(
            "S212",
            f"{name}: the usual {recipe.package} is a package beside intact, and not in an environment of its own",
            allowed=f"{device}@VERSION" + (f"; installed: {here}" if here else ""),
            fix=f"name the version of {recipe.package}, such as {device}@2.6.0",
        )
    return recipe, version or recipe.version or ""


def _rows(recipe: Recipe) -> Iterator[KnownToolchain]:
    usual = toolchains.find(recipe)
    if usual is not None or recipe.version is not None:
        yield _row(recipe.name, usual)
    for version in installation.versions(recipe):
        folder = toolchains.place(recipe, version)
        if usual is None or usual.path != folder:
            yield _row(toolchains.label(recipe.name, version), toolchains.find(recipe, version))


def _row(name: str, found: Toolchain | None) -> KnownToolchain:
    return KnownToolchain(name, False) if found is None else KnownToolchain(name, True, found.version, str(found.path))


def _named(recipe: Recipe) -> bool:
    usual = toolchains.find(recipe)
    return usual is not None and toolchains.home() not in usual.path.parents
