"""Finds backends by name: the folders beside this file, and packages with an entry point of `intact.backends`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import onnx_ir as ir

from intact import environment
from intact.backends.base import ONNX, Backend
from intact.errors import NotAvailable, SettingsError
from intact.runtime import toolchains
from intact.runtime.toolchains import Toolchain
from intact.settings import devices


def names() -> list[str]:
    """Names of all backends, in alphabetical order."""
    return sorted({*devices.shipped(), *(point.name for point in devices.added(devices.BACKEND_GROUP))})


def is_backend(name: str) -> bool:
    """True if `name` is that of a backend, and not of a table alone; packages are looked through last."""
    return name in devices.shipped() or name in names()


@cache
def find(name: str) -> Backend:
    """The backend of this name."""
    if name in devices.shipped():
        backend: Backend = importlib.import_module(f"{__package__}.{name}.backend").BACKEND
        return backend
    for point in devices.added(devices.BACKEND_GROUP, name):
        return _whole(name, devices.load(point))
    raise NotAvailable("E110", f"intact cannot compile for {name} yet", allowed=", ".join(names()))


def every() -> Iterator[tuple[str, Backend]]:
    """All backends with their names: those of intact first, others are loaded only as far as this is read."""
    shipped = devices.shipped()
    for name in (*shipped, *(name for name in names() if name not in shipped)):
        yield name, find(name)


def versions(name: str, asked: str | None = None) -> dict[str, str]:
    """Versions of what takes part in a build for a device; a table alone needs nothing beyond intact.

    `asked` is the setting `toolchain`.
    """
    if not is_backend(name):
        return environment.versions()
    found, chain = find(name), toolchain(name, asked)
    if found.toolchain is None or chain is None:
        return environment.versions(found.packages, install=found.install)
    own = found.toolchain.package
    others = [package for package in found.packages if package != own]
    return {**environment.versions(others, install=found.install), own: chain.version}


def toolchain(name: str, asked: str | None = None) -> Toolchain | None:
    """The toolchain of a device in an environment of its own; None where its packages are beside ours.

    `asked` is the setting `toolchain`: a version, or a folder.
    """
    recipe = find(name).toolchain
    if recipe is None:
        if asked is not None:
            having = ", ".join(other for other, backend in every() if backend.toolchain is not None)
            raise SettingsError(
                "S213", f"toolchain {asked}: {name} has none in an environment of its own", allowed=having
            )
        return None
    found = toolchains.chosen(recipe, asked)
    return found if found is not None or recipe.beside else toolchains.require(recipe)


def title(name: str) -> str:
    """A device as reports name it; a table, or a backend that is not installed, goes by its name."""
    return find(name).title if is_backend(name) else name


def simulated() -> list[str]:
    """Names of the backends with a simulator."""
    return [name for name, backend in every() if backend.simulator is not None]


def timed() -> list[str]:
    """Names of the backends whose latency is measured here."""
    return [name for name, backend in every() if backend.untimed is None]


def estimating() -> list[str]:
    """Names of the backends whose compiler estimates cycles."""
    return [name for name, backend in every() if backend.estimates]


def of_file(path: Path) -> Backend | None:
    """The backend whose deployed files are like `path` and no ONNX models; None for an ONNX model."""
    if path.suffix == ONNX:
        return None
    return next((backend for _, backend in every() if backend.suffix == path.suffix), None)


def maker_of(model: ir.Model) -> str:
    """The name of the backend whose compiler made a compiled model."""
    found = next((name for name, backend in every() if backend.made(model)), None)
    if found is None:
        makers = {node.attributes.get_string("source", "") for node in model.graph if node.op_type == "EPContext"}
        raise NotAvailable(
            "E113",
            f"no backend runs what {', '.join(sorted(makers))} compiled",
            allowed=", ".join(names()),
            fix="install the backend that made it, or give the model that it was made from",
        )
    return found


def _whole(name: str, loaded: Backend) -> Backend:
    """An object of another package, which has to have all that the protocol names."""
    missing = [member for member in _members() if not hasattr(loaded, member)]
    if missing:
        raise NotAvailable(
            "E114",
            f"the backend {name} of an installed package has no {', '.join(missing)}",
            fix="derive its class from intact.backends.base.Backend, and give what has no default there",
        )
    return loaded


def _members() -> list[str]:
    return sorted({name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_")})
