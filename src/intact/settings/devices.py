"""Names that a device can be given by: the folders of `backends/`, and packages that are installed beside intact."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from intact.errors import NotAvailable

TABLE = "table.toml"
WRONG = "wrong"
"""The folder beside a table with the file of what the device computes wrongly."""
BACKEND_GROUP = "intact.backends"
"""Installed packages add backends under this name: an entry point of it loads a `Backend`, which knows its table."""
TARGET_GROUP = "intact.targets"
"""Installed packages add tables alone under this name: an entry point of it loads the path of a table."""
HOST = "cpu"
"""The device that intact itself computes on, ONNX Runtime's CPU provider: the default, and what others are held to."""


@cache
def shipped() -> tuple[str, ...]:
    """Names of the backends that are part of intact, in alphabetical order."""
    folders = (resources.files("intact") / "backends").iterdir()
    return tuple(sorted(folder.name for folder in folders if (folder / TABLE).is_file()))


def known() -> list[str]:
    """Every name that stands for a device, in alphabetical order."""
    return sorted({*shipped(), *(point.name for group in (BACKEND_GROUP, TARGET_GROUP) for point in _points(group))})


def is_known(name: str) -> bool:
    """True if `name` stands for a device; packages are looked through only where intact itself has none such."""
    return name in shipped() or name in known()


def in_words(text: str) -> dict[str, str]:
    """The settings of compilation that `cpu`, `qnn:v75`, `qnn:SM8650` or `qnn@2.6.0:v75` stands for."""
    told, _, part = text.partition(":")
    chip = {} if not part else {"arch": part} if part[:1] == "v" and part[1:].isdigit() else {"soc": part}
    name, _, version = (told, "", "") if told.endswith(".toml") else told.partition("@")
    return {"device": name, **({"toolchain": version} if version else {}), **chip}


def added(group: str, name: str | None = None) -> list[EntryPoint]:
    """Entry points of installed packages in a group, all of them or those of one name."""
    return [point for point in _points(group) if name in (None, point.name)]


def load(point: EntryPoint) -> Any:
    """The object that an entry point names."""
    try:
        return point.load()
    # A package that somebody else wrote can fail in any way when it is imported.
    except Exception as error:
        raise NotAvailable(
            "E115",
            f"{point.name}: the package that adds it does not load: {type(error).__name__}: {error}",
            fix=f"mend or uninstall the package of {point.value}",
        ) from error


def _points(group: str) -> Iterator[EntryPoint]:
    yield from entry_points(group=group)
