"""Edits of whole graphs without Python's cycle collector in between."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

# Graphs of at least this many nodes are worth a collection: their copies hold much memory.
MANY_NODES = 2000

# True while a build leaves collecting to `tidy`.
_is_paused = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold Python's cycle collector back: it would walk the whole graph over and over, and find little.

    What was made meanwhile counts as old afterwards, or the next object made would start such a walk after all.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _grow_old()
            gc.enable()


@contextmanager
def collected_by_stage() -> Iterator[None]:
    """Leave it to `tidy` to free dropped copies of a model, for as long as a build runs.

    The collector looks again at all that is old whenever a quarter as much is new. It knows nothing of what became
    old while it was held back, and would look at the whole program over and over. What is there when a build begins is
    looked at again when it has ended; a program that holds the collector back, or keeps objects out of it, is let be.
    """
    global _is_paused
    if not gc.isenabled() or gc.get_freeze_count() > 0:
        yield
        return
    gc.disable()
    gc.freeze()
    _is_paused = True
    try:
        yield
    finally:
        _is_paused = False
        gc.unfreeze()
        gc.enable()


@contextmanager
def collecting() -> Iterator[None]:
    """Let the collector work while code of the user runs inside a build: it may drop cycles row after row."""
    if not _is_paused:
        yield
        return
    gc.enable()
    try:
        yield
    finally:
        # A thread may still be in the user's code when the build has ended.
        if _is_paused:
            gc.disable()


def tidy(model: ir.Model) -> None:
    """Free the copies of a model that were dropped: values and nodes refer to each other, so that they stay.

    Copies of a large graph that are still there are not looked at again before the build ends. Where nothing holds the
    collector back, small ones are left to it: it would look at all the rest of the program for them.
    """
    is_large = len(model.graph) >= MANY_NODES
    if is_large or _is_paused:
        gc.collect()
    if is_large and _is_paused:
        gc.freeze()
    if is_large:
        give_back()


def give_back() -> None:
    """Give free memory back to the system, which glibc keeps where sessions were; elsewhere nothing is to be done."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _grow_old() -> None:
    """Move every object to the oldest generation, unless the program keeps some out of all of them."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
