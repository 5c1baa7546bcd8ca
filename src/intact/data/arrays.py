"""Arrays with samples on axis 0, and the rule that turns their rows into samples.

The rank of an array decides, and nothing else. For an input of rank R:

=========  ======================  ==========================================================================
array      the model's input       sample i
=========  ======================  ==========================================================================
rank R+1   any                     ``array[i]``: taken whole. Inputs without a batch axis are given this way:
                                   ``[24, 32]`` for the input ``[32]``, ``[24]`` for a scalar.
rank R     first dimension 1       ``array[i:i+1]``: ``[24, 3, 32, 32]`` for the input ``[1, 3, 32, 32]``
           or free                 or ``['batch', 3, 32, 32]``.
rank R     first dimension B > 1   ``array[i*B:(i+1)*B]``: B rows in a row make one sample; what is left over
                                   at the end is dropped, with a warning.
=========  ======================  ==========================================================================

All inputs must come to the same number of samples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from intact.data.dataset import Kind, Source
from intact.data.input_specs import Feeds, InputSpec, check_dtype, check_names, looks_like, shape_text
from intact.data.input_specs import fits as shape_fits
from intact.errors import DataError
from intact.records import dataclass


class ArrayRows(Protocol):
    """An array whose rows can be read a block at a time."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[np.generic]: ...

    def blocks(self, start: int, stop: int, size: int) -> Iterator[np.ndarray]:
        """Rows `start` to `stop`, `size` at a time."""

    def elsewhere(self) -> ArrayRows | None:
        """The same rows for a process in another folder; None where they are in the memory of this one."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """An array that is already there."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return self.array.dtype

    def blocks(self, start: int, stop: int, size: int) -> Iterator[np.ndarray]:
        return (self.array[row : row + size] for row in range(start, stop, size))

    def elsewhere(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Layout:
    """The rule from rows to samples: `rows` of them make one; `whole` drops the axis that held the samples."""

    rows: int
    whole: bool


class ArraySource(Source):
    """One array for each input, with samples on axis 0."""

    def __init__(self, specs: tuple[InputSpec, ...], arrays: Mapping[str, ArrayRows], kind: Kind, where: str) -> None:
        check_names(specs, arrays, where)
        self.kind = kind
        self.where = where
        self._arrays = {spec.name: arrays[spec.name] for spec in specs}
        self._layouts = {spec.name: layout(spec, arrays[spec.name], where) for spec in specs}
        self.rows = self._common_count()
        self.warnings = tuple(self._leftovers())

    def read(self, start: int, stop: int) -> Iterator[Feeds]:
        names = list(self._arrays)
        columns = (self._samples(name, start, stop) for name in names)
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))

    def elsewhere(self) -> Source | None:
        found = {name: rows for name, array in self._arrays.items() if (rows := array.elsewhere()) is not None}
        if len(found) < len(self._arrays):
            return None
        result = copy.copy(self)
        result._arrays = found
        return result

    def _samples(self, name: str, start: int, stop: int) -> Iterator[np.ndarray]:
        form = self._layouts[name]
        for block in self._arrays[name].blocks(start * form.rows, stop * form.rows, form.rows):
            # `block[0]` of a one-dimensional array is a numpy scalar, which runtimes do not take.
            yield np.asarray(block[0]) if form.whole else block

    def _count(self, name: str) -> int:
        return self._arrays[name].shape[0] // self._layouts[name].rows

    def _common_count(self) -> int:
        counts = {name: self._count(name) for name in self._arrays}
        if len(set(counts.values())) > 1:
            raise DataError(
                "D110",
                f"{self.where}: inputs have different numbers of samples: "
                + ", ".join(f"{name} {count}" for name, count in counts.items()),
                allowed="the same number of samples for every input",
                fix="save the arrays of the same samples, in the same order",
            )
        count = min(counts.values(), default=0)
        if count == 0:
            raise DataError("D109", f"{self.where}: no samples", allowed="at least one", fix="add samples on axis 0")
        return count

    def _leftovers(self) -> Iterator[str]:
        for name, form in self._layouts.items():
            left = self._arrays[name].shape[0] % form.rows
            if left:
                yield f"{self.where}: the last {left} rows of {name} are dropped: the model takes {form.rows} at a time"


def without_fixed(
    arrays: Mapping[str, ArrayRows], fixed: Mapping[str, np.ndarray], where: str
) -> Mapping[str, ArrayRows]:
    """The arrays but those of inputs that are constants now: every sample of these has to hold that constant."""
    given = {name: arrays[name] for name in fixed if name in arrays}
    specs = tuple(InputSpec(name, fixed[name].dtype, fixed[name].shape) for name in given)
    source = ArraySource(specs, given, "arrays", where) if given else None
    for row, feed in enumerate(source.read(0, source.rows) if source is not None else ()):
        for name, found in feed.items():
            if not np.array_equal(found, fixed[name]):
                raise DataError(
                    "D145",
                    f"{where}: {name} is {_shown(found)} in sample {row}, and --set makes it {_shown(fixed[name])}",
                    allowed="the value that --set gives, in every sample, or no array of this input",
                    fix=f"leave {name} out of the data, or --set {name} to what it holds",
                )
    return {name: array for name, array in arrays.items() if name not in given}


def _shown(array: np.ndarray) -> str:
    return np.array2string(array, threshold=4)


def layout(spec: InputSpec, array: ArrayRows, where: str) -> Layout:
    """The layout that the rank of `array` decides for this input."""
    check_dtype(spec, array.dtype, where)
    rank, wanted = len(array.shape), len(spec.shape)
    if rank == wanted + 1:
        _check_shape(spec, array, spec.shape, array.shape[1:], where)
        return Layout(rows=1, whole=True)
    if rank != wanted or rank == 0:
        raise DataError(
            "D107",
            f"{where}: {spec.name} has rank {rank}, shape {shape_text(array.shape)}; the model's input is {spec}",
            allowed=_allowed(spec),
            fix="put the samples on axis 0",
        )
    # The first axis of the array counts rows, so only the others have to fit.
    _check_shape(spec, array, (None, *spec.shape[1:]), array.shape, where)
    batch = spec.shape[0]
    return Layout(rows=batch if isinstance(batch, int) and batch > 0 else 1, whole=False)


def _check_shape(
    spec: InputSpec, array: ArrayRows, wanted: tuple[int | str | None, ...], found: tuple[int, ...], where: str
) -> None:
    if shape_fits(wanted, found):
        return
    seems = looks_like(wanted, found, before=len(array.shape) - len(found))
    raise DataError(
        "D108",
        f"{where}: {spec.name} has shape {shape_text(array.shape)}{seems}",
        allowed=_allowed(spec),
        fix="bring the samples into the shape and the layout of the model's input",
    )


def _allowed(spec: InputSpec) -> str:
    whole = shape_text(("samples", *spec.shape))
    return f"{whole} or {shape_text(('samples', *spec.shape[1:]))}" if spec.shape else whole
