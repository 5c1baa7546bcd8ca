"""Two folders exchange their names in one step, so that at no moment one of the names is missing."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def swap(a: Path, b: Path) -> None:
    """Exchange what two paths name; an OSError where the system or the file system cannot."""
    if sys.platform != "linux":
        raise OSError("this system cannot exchange two names")
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(a), os.fsencode(b))
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(b))
