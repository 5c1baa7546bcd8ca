"""Versions of what takes part in a build."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from intact.errors import NotAvailable

_CORE = ("intact", "numpy", "onnx", "onnx-ir", "onnxruntime")


def versions(packages: Sequence[str] = (), *, install: str | None = None) -> dict[str, str]:
    """Versions of Python, of intact and what it stands on, and of further packages; `install` is how to get those."""
    found = {name: version(name, install if name in packages else None) for name in (*_CORE, *packages)}
    return {"python": platform.python_version(), "platform": platform.platform(terse=True), **found}


@cache
def sources() -> str:
    """A digest of the sources, which change more often than the version."""
    root, found = Path(__file__).parent, hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".toml", ".j2")):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def version(package: str, install: str | None = None) -> str:
    """The version of a package that is installed; `install` is how to get it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise NotAvailable("E120", f"{package} is not installed", fix=install) from None
