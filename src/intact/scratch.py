"""Files and folders that are there only while a process works, and the removal of what a dead one left.

Whoever makes one holds a lock on it. The kernel drops the lock with the process, however that ends, in whichever
container it ran: what has a name of ours and no lock has no owner. Where there are no such locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intact.errors import OutputError

# A name is of ours if it is exactly so: what for, the process, the second that it was made in, and chance.
_OURS = re.compile(r"\.?intact-[a-z]+-\d+-\d+-[0-9a-f]{12}")
_ATTEMPTS = 5


@contextmanager
def folder(purpose: str, inside: Path | None = None) -> Iterator[Path]:
    """A new folder for one `purpose` (a word), in the temporary folder or `inside` another, gone with the block."""
    place = Path(tempfile.gettempdir()) if inside is None else inside
    sweep(place)
    path, lock = _made(purpose, place, hidden=inside is not None)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _close(lock)


@contextmanager
def draft(target: Path) -> Iterator[Path]:
    """The path of a new file beside `target` that takes its name when the block ends, and is gone when it fails."""
    sweep(target.parent)
    path, lock = _drafted(target.parent)
    try:
        yield path
        if sys.platform == "win32":
            os.close(lock)
            lock = None
        os.replace(path, target)
    finally:
        path.unlink(missing_ok=True)
        _close(lock)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock on a folder, or on a file, which is made where it is not there; False if another process holds it.

    Folders have no locks on Windows: True.
    """
    is_folder = path.is_dir()
    flags = os.O_RDONLY if is_folder else os.O_CREAT | os.O_RDWR
    lock = None if is_folder and sys.platform == "win32" else os.open(path, flags, 0o666)
    try:
        yield lock is None or _try_lock(lock) is not False
    finally:
        _close(lock)


def write_text(target: Path, text: str) -> None:
    """Write a file that appears whole, or not at all; halves of characters in it, as names may hold, as escapes."""
    try:
        with draft(target) as path:
            path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as problem:
        raise refusal(target, problem) from problem


def refusal(target: Path | str, problem: OSError) -> OutputError:
    """The error for something that the system does not let us write."""
    reason, fix = problem.strerror or str(problem), "check the folder, its rights and the space on the disk"
    return OutputError("O130", f"cannot write {target}: {reason}", fix=fix)


def is_ours(name: str) -> bool:
    """True if something of this name is not here to stay."""
    return _OURS.fullmatch(name) is not None


def sweep(place: Path) -> None:
    """Remove from a folder what a dead process of ours left in it."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            if is_ours(name):
                _remove_if_dead(place / name)


def _made(purpose: str, place: Path, *, hidden: bool) -> tuple[Path, int | None]:
    for _ in range(_ATTEMPTS):
        path = place / _name(purpose, hidden=hidden)
        path.mkdir(mode=0o700)
        # Somebody who sweeps at this very moment may be quicker than we are.
        with contextlib.suppress(FileNotFoundError):
            lock = None if sys.platform == "win32" else os.open(path, os.O_RDONLY)
            if lock is None or _is_kept(path, lock):
                return path, lock
    raise AssertionError(f"no folder in {place} stays for long enough to be locked")


def _drafted(place: Path) -> tuple[Path, int | None]:
    for _ in range(_ATTEMPTS):
        path = place / _name("draft", hidden=True)
        lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)
        if _is_kept(path, lock):
            return path, lock
    raise AssertionError(f"no file in {place} stays for long enough to be locked")


def _is_kept(path: Path, lock: int) -> bool:
    """True if the lock is ours, or nobody's, and what it is on has not been swept before that; else it is closed."""
    if _try_lock(lock) is not False and path.exists():
        return True
    os.close(lock)
    return False


def _name(purpose: str, *, hidden: bool) -> str:
    return f"{'.' if hidden else ''}intact-{purpose}-{os.getpid()}-{int(time.time())}-{os.urandom(6).hex()}"


def _remove_if_dead(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.lstat().st_uid != os.getuid() or path.is_symlink():
            return
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _try_lock(lock):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        finally:
            os.close(lock)


def _try_lock(file: int) -> bool | None:
    """True if the lock is ours now, False if it is another's, None where files cannot be locked."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _close(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
