"""Ordinary files, before they are read as models. Loads nothing, so that a wrong path costs no time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intact.errors import SettingsError

MODEL_FILE = "an ONNX model file (.onnx)"


def check_ordinary(file: Path) -> os.stat_result:
    """Refuse what is not there, and what may never end, such as a pipe or a device, before it is opened."""
    with reading(file):
        status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not an ordinary file"
        raise SettingsError("S130", f"{file} is {kind}", allowed=MODEL_FILE)
    return status


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Tell why a file could not be read, as an error of the call."""
    try:
        yield
    except (OSError, ValueError) as problem:
        # A path with a zero byte is a ValueError.
        reason = getattr(problem, "strerror", None) or str(problem)
        raise SettingsError(
            "S130", f"cannot read {file}: {reason}", allowed=MODEL_FILE, fix="check the path and the rights"
        ) from problem
