"""Edits of whole graphs without Python's cycle collector in between."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

# Copies of so many nodes hold more memory than a walk over everything takes time.
MANY_NODES = 2000


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


def tidy(model: ir.Model) -> None:
    """Free the copies of a large model that were dropped: values and nodes refer to each other, so that they stay.

    Small ones are left to the collector, which would look at all the rest of the program for them.
    """
    if len(model.graph) >= MANY_NODES:
        gc.collect()


def _grow_old() -> None:
    """Move every object to the oldest generation, unless the program keeps some out of all of them."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
