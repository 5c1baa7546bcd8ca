"""Vendors' toolchains in environments of their own: a backend says what one needs, and asks here for it.

A toolchain is a virtual environment: in the user's cache, where `intact toolchain install` makes it, or anywhere else,
named by the variable INTACT_TOOLCHAIN_<NAME>. Jobs run in it through `process.call(…, python=toolchain.python)`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from intact.errors import NotAvailable
from intact.runtime.process import Interpreter

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version of Python that intact runs in."""
RECORD = "toolchain.json"
"""Written last into an environment that is whole: its requirements, and all that they brought."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that makes a toolchain: data that a backend declares.

    `requirements` is the whole set, each pinned with `==` and installed without what it asks for itself, so that the
    same pins make the same environment; `{version}` stands for the version of `package`, whose default is `version`
    (None: there is no toolchain unless the user names a version). `check` is a job ("package.module:function") that
    compiles the ONNX file `request["model"]`, a Relu of 1×4×8×8 floats at opset 12, in the folder `request["folder"]`,
    and raises if that fails; `hint` says what to do then. `pythons` are the versions of Python that the packages exist
    for, `bytes` what they take on the disk.

    Where `beside` is True the packages get along with ours but for their version: jobs run in an interpreter like ours
    and import what we would, after what is in the environment. Otherwise the file of a job is all of ours that it sees.
    """

    name: str
    package: str
    version: str | None
    requirements: tuple[str, ...]
    check: str
    pythons: tuple[str, ...]
    bytes: int
    hint: str
    beside: bool = False

    def pins(self, version: str) -> list[str]:
        """The requirements of one version."""
        return [requirement.format(version=version) for requirement in self.requirements]

    @property
    def variable(self) -> str:
        """The environment variable that names an environment to use."""
        return f"INTACT_TOOLCHAIN_{self.name.upper()}"

    def command(self, version: str | None = None) -> str:
        """The command that installs it."""
        return f"intact toolchain install {label(self.name, version)}"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A vendor's toolchain that is here: its interpreter, for `process.call`, its version and its environment."""

    name: str
    python: Interpreter
    version: str
    path: Path


def find(recipe: Recipe, version: str | None = None) -> Toolchain | None:
    """The toolchain of a recipe, None where it is not installed; one that the variable names is used or refused.

    `version` asks for another one than usual, which is looked for in the user's cache alone.
    """
    named = os.environ.get(recipe.variable) if version is None else None
    if named:
        return at(recipe, Path(named), recipe.variable)
    wanted = version or recipe.version
    folder = place(recipe, wanted) if wanted is not None else None
    if folder is None or wanted is None or not is_whole(recipe, wanted, folder):
        return None
    return at(recipe, folder, "the user's cache")


def require(recipe: Recipe, version: str | None = None) -> Toolchain:
    """The toolchain of a recipe, or the error that says how to get it."""
    found = find(recipe, version)
    if found is None:
        raise NotAvailable(
            "E160",
            f"the toolchain {label(recipe.name, version)} ({recipe.package}) is not installed",
            allowed="an environment that intact made"
            + (f", or one that {recipe.variable} names" if version is None else ", or the folder of another one"),
            fix=recipe.command(version),
        )
    return found


def chosen(recipe: Recipe, asked: str | None) -> Toolchain | None:
    """The toolchain that a setting asks for: a version, the folder of an environment, or None for the usual one."""
    if asked is not None and Path(asked).name != asked:
        return at(recipe, Path(asked), "the setting toolchain")
    return find(recipe) if asked is None else require(recipe, asked)


def at(recipe: Recipe, folder: Path, named_by: str) -> Toolchain:
    """The toolchain in the virtual environment `folder`, whoever made it."""
    python, packages = executable(folder), packages_of(folder)
    if not python.is_file() or packages is None:
        raise _unusable(recipe, f"{named_by}: {folder} is no virtual environment")
    found = next(iter(metadata.distributions(name=recipe.package, path=[str(packages)])), None)
    if found is None:
        raise _unusable(recipe, f"{named_by}: {folder} has no {recipe.package}")
    if recipe.beside and sys.platform != "win32" and packages.parent.name != f"python{OURS}":
        raise _unusable(recipe, f"{named_by}: {folder} has another Python than intact, {packages.parent.name}")
    interpreter = Interpreter(Path(sys.executable), (packages,)) if recipe.beside else Interpreter(python)
    return Toolchain(recipe.name, interpreter, found.version, folder)


def place(recipe: Recipe, version: str) -> Path:
    """The folder in the user's cache that a toolchain has, or would have."""
    return home() / label(recipe.name, version)


def home() -> Path:
    """The folder of all toolchains that intact made."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("intact", appauthor=False)) / "toolchains"


def label(name: str, version: str | None) -> str:
    """The name of a toolchain, with its version where that is not the usual one."""
    return name if version is None else f"{name}@{version}"


def is_whole(recipe: Recipe, version: str, folder: Path) -> bool:
    """True if an environment was finished, and with the requirements that the recipe has today."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("requirements") == recipe.pins(version)


def executable(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def packages_of(folder: Path) -> Path | None:
    """The folder that a virtual environment imports packages from."""
    pattern = "Lib/site-packages" if sys.platform == "win32" else "lib/python3*/site-packages"
    return next((found.resolve() for found in sorted(folder.glob(pattern))), None)


def _unusable(recipe: Recipe, found: str) -> NotAvailable:
    return NotAvailable(
        "E161",
        found,
        allowed=f"the folder of a virtual environment with {recipe.package}"
        + (f" and Python {OURS}" if recipe.beside else ""),
        fix=f"name another one with {recipe.variable}, or unset it and run: {recipe.command()}",
    )
