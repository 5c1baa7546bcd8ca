"""Edits of whole graphs without Python's cycle collector in between."""

from __future__ import annotations

import _thread
import ctypes
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

# Graphs of at least this many nodes are worth a collection: their copies hold much memory.
MANY_NODES = 2000
# Weights of fewer bytes than this are left where they are until the end.
FEW_BYTES = 32 << 20
# New objects that take the collector less time than it takes to see to it that it does not look at them.
FEW_OBJECTS = 50_000
# Programs with more objects than this are let be: to set them apart from what is imported would take long.
MOST_OBJECTS = 200_000

# True while a build leaves collecting to `tidy`.
_is_paused = False
# True while it keeps objects of the program out of the collector.
_is_frozen = False
# The number of objects of imported modules that are kept out of the collector.
_imported = 0


@contextmanager
def importing() -> Iterator[None]:
    """Keep what modules are made of out of the collector: it is most of what there is, and stays to the end.

    To look for garbage among it takes a tenth of a second each time, and at the end of the program several times. The
    objects that were there before, which are the program's own, are collected as ever.
    """
    global _imported
    before = gc.get_objects() if gc.isenabled() and not _keeps_objects_out() and _thread._count() == 0 else []
    if not 0 < len(before) <= MOST_OBJECTS:
        with no_collection():
            yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        _follow(before)
        _imported = gc.get_freeze_count()
        gc.enable()


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
    global _is_paused, _is_frozen
    if not gc.isenabled() or _keeps_objects_out():
        yield
        return
    gc.disable()
    _is_paused, _is_frozen = True, _imported == 0 or len(gc.get_objects()) > FEW_OBJECTS
    if _is_frozen:
        gc.freeze()
    try:
        yield
    finally:
        _is_paused = False
        if _is_frozen:
            _thaw()
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
        gc.disable()


def tidy(model: ir.Model) -> None:
    """Free the copies of a model that were dropped: values and nodes refer to each other, so that they stay.

    Copies of a large graph that are still there are not looked at again before the build ends. Where nothing holds the
    collector back, small ones are left to it: it would look at all the rest of the program for them.
    """
    global _is_frozen
    is_large = len(model.graph) >= MANY_NODES
    if is_large or (_is_paused and _weighs(model)):
        gc.collect()
    if is_large and _is_paused:
        _is_frozen = True
        gc.freeze()
    if is_large:
        give_back()


def _weighs(model: ir.Model) -> bool:
    """True if the weights of a dropped copy are worth a look for it."""
    return (
        sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value) >= FEW_BYTES
    )


def give_back() -> None:
    """Give free memory back to the system, which glibc keeps where sessions were; elsewhere nothing is to be done."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _grow_old() -> None:
    """Move every object to the oldest generation, unless the program keeps some out of all of them."""
    if _keeps_objects_out() or (_imported and gc.get_count()[0] < FEW_OBJECTS):
        return
    gc.freeze()
    _thaw()


def _keeps_objects_out() -> bool:
    """True if the program keeps objects of its own out of the collector."""
    return gc.get_freeze_count() > _imported


def _thaw() -> None:
    """Give all objects to the collector again, those of modules as well: it does not tell them apart."""
    global _imported
    gc.unfreeze()
    _imported = 0


def _follow(objects: Sequence[object]) -> None:
    """Give objects to the collector again that were kept out of it with all others."""
    leave, enter = ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track
    # By address: an object that is asked how it wants to be passed on may have something to do first.
    leave.argtypes = enter.argtypes = [ctypes.c_void_p]
    leave.restype = enter.restype = None
    for address in map(id, filter(gc.is_tracked, objects)):
        leave(address)
        enter(address)
