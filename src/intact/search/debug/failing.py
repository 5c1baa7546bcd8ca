"""Finds the smallest piece of a model that the vendor's compiler fails on, where the compiler names no node."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import onnx_ir as ir

from intact import scratch
from intact.backends.base import Device, Simulator
from intact.errors import ToolchainError
from intact.model import io
from intact.records import dataclass
from intact.runtime import process
from intact.search.debug.units import Unit, Units

# Beyond this, leaving out units one by one costs more time than a smaller piece is worth.
MOST_LEFT_OUT = 12

Fails = Callable[[ir.Model], str | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """The smallest piece that fails: its units in order, the piece as a model, and what the compiler says."""

    units: tuple[Unit, ...]
    model: ir.Model
    error: str
    attempts: int


def compiler(simulator: Simulator, device: Device) -> Fails:
    """A function that compiles a model, nodes on the CPU allowed, and returns the compiler's error if it fails."""

    def fails(model: ir.Model) -> str | None:
        with scratch.folder("debug") as name:
            path = io.save(model, Path(name, "source.onnx"))[0]
            try:
                return simulator.failure(path, device)
            except ToolchainError as error:
                # A compiler that dies has failed; one that is not there, or does not start, has not.
                if error.code not in process.DEATHS:
                    raise
                return error.message

    return fails


def smallest_failing(model: ir.Model, fails: Fails, progress: Callable[[], None] = lambda: None) -> Failure | None:
    """Cut units off the end, then off the beginning, then out of the middle, as long as the rest still fails.

    None where the model compiles in units although it fails as a whole.
    """
    search = _Search(Units(model), fails, progress)
    count = len(search.units.units)
    if search.error(range(count)) is None:
        return None
    end = _least(1, count, lambda stop: search.error(range(stop)) is not None)
    start = -_least(1 - end, 0, lambda first: search.error(range(-first, end)) is not None)
    chosen = list(range(start, end))
    for index in chosen[:-1] if len(chosen) <= MOST_LEFT_OUT else ():
        rest = [other for other in chosen if other != index]
        if search.error(rest) is not None:
            chosen = rest
    error = search.error(chosen)
    assert error is not None, "the piece that is left fails"
    units = tuple(search.units.units[index] for index in chosen)
    return Failure(units, search.units.model_of(chosen), error, search.attempts)


class _Search:
    """Compiles sets of units, each set once."""

    def __init__(self, units: Units, fails: Fails, progress: Callable[[], None]) -> None:
        self.units = units
        self.attempts = 0
        self._fails = fails
        self._progress = progress
        self._known: dict[tuple[int, ...], str | None] = {}

    def error(self, chosen: Collection[int]) -> str | None:
        key = tuple(chosen)
        if key not in self._known:
            self._known[key] = self._fails(self.units.model_of(key))
            self.attempts += 1
            self._progress()
        return self._known[key]


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number for which something holds that holds for `high` and, once it does, for all above."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
