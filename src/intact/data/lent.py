"""Inputs that a caller holds in memory: they have a name for as long as a call lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np

from intact.data.arrays import ArraySource, InMemory, without_fixed
from intact.data.dataset import Source
from intact.data.input_specs import InputSpec
from intact.data.python import CallableSource, by_name

Held = Mapping[str, np.ndarray] | np.ndarray | Callable[[], object]

_HELD: dict[str, Held] = {}


@contextmanager
def lend(name: str, inputs: Held) -> Iterator[str]:
    """Give inputs in memory a name that settings can hold, until the block ends."""
    unique = name if name not in _HELD else f"{name}-{len(_HELD)}"
    _HELD[unique] = inputs
    try:
        yield unique
    finally:
        del _HELD[unique]


def is_lent(name: str) -> bool:
    """True if a caller has lent inputs by this name."""
    return name in _HELD


def open_lent(
    name: str, specs: tuple[InputSpec, ...], limit: int, fixed: Mapping[str, np.ndarray] = MappingProxyType({})
) -> Source:
    """The inputs that were lent by this name; arrays may be of `fixed` inputs, with the values that they have."""
    held = _HELD[name]
    if callable(held):
        return CallableSource(name, specs, limit, function=held)
    arrays = {key: InMemory(np.asarray(array)) for key, array in by_name(held, specs, name).items()}
    return ArraySource(specs, without_fixed(arrays, fixed, name), "arrays", name)
