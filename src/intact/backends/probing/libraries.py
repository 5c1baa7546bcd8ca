"""The library that a probe asks: that of a backend."""

from __future__ import annotations

from intact.backends import installed
from intact.backends.base import Library
from intact.errors import SettingsError


def library_of(backend: str) -> Library:
    """The library that knows what `backend` takes."""
    library = installed.find(backend).library if installed.is_backend(backend) else None
    if library is None:
        able = ", ".join(name for name, other in installed.every() if other.library is not None)
        raise SettingsError("S191", f"--device {backend}: it has no library to ask", allowed=able)
    return library
