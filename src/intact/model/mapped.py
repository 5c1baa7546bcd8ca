"""Large arrays kept in files rather than in memory: weights go from mapped files to mapped files, layer by layer."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import threading
import weakref

import numpy as np

# A file costs more than it spares below this.
LEAST_BYTES = 1 << 22
# Arrays share files, because each takes one of the few that a process may have open; its space is free again when
# nobody reads any of its arrays.
FILE_BYTES = 1 << 28
_ALIGNMENT = 4096


def aside(array: np.ndarray) -> np.ndarray:
    """The same values, read-only, in a mapped file without a name that is gone with the last array in it.

    Small arrays, and those that are mapped already, are returned as they are. So is one that the folder for temporary
    files has no room for: memory is where it was anyway.
    """
    unfit = array.nbytes < LEAST_BYTES or array.dtype.hasobject or sys.platform == "win32"
    if unfit or is_mapped(array):
        return array
    with contextlib.suppress(OSError), _lock:
        return _file_for(array.nbytes).take(np.ascontiguousarray(array))
    return array


def is_mapped(array: np.ndarray) -> bool:
    """True if a file backs the array, so that its pages need no memory of their own."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


class _ArrayFile:
    """A file without a name, mapped as a whole, that arrays are written to one behind the other."""

    def __init__(self, size: int) -> None:
        self.owner, self.size, self.used = os.getpid(), size, 0
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)

    def has_room(self, size: int) -> bool:
        # After a fork the other process writes to the same file.
        return self.owner == os.getpid() and self.used + size <= self.size

    def take(self, array: np.ndarray) -> np.ndarray:
        """Write an array at the end; return it as it is mapped there."""
        # Written, not copied into the map: a full disk then is an error here, not a signal.
        content, done = array.reshape(-1).view(np.uint8).data, 0
        while done < len(content):
            done += os.pwrite(self._file, content[done:], self.used + done)
        found = np.frombuffer(self._map, array.dtype, array.size, self.used).reshape(array.shape)
        self.used += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return found


_lock = threading.Lock()
_last: _ArrayFile | None = None


def _file_for(size: int) -> _ArrayFile:
    global _last
    if _last is None or not _last.has_room(size):
        _last = _ArrayFile(max(size, FILE_BYTES))
    return _last
