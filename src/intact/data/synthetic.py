"""Inputs made up from the graph: they exercise the model, and stand in for real data until there is some.

Ids stay below the rows of the tables that they index, masks are 0/1 with the live keys first, floats follow the
distribution. Each value depends on the seed, its row and its input only, so that asking for more rows does not
change the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.data.dataset import Source
from intact.data.demands import Fixed, Interval
from intact.data.input_specs import Feeds, InputSpec, input_specs, shape_text
from intact.data.roles import Mask, Real, Role, Signal, TableIndex, roles
from intact.errors import DataError, ModelError
from intact.records import dataclass
from intact.runtime import ort_cpu
from intact.settings.config import Distribution

# Sizes that are tried for free dimensions until the model runs: windows, strides and pads may need more than one.
FREE_SIZES = (1, 2, 8, 32, 128)
# And those that are tried after them for all but batches: windows over sound are long, and a long batch costs time.
LONG_SIZES = (512, 2048)
# Of one input of one sample; more would be a mistake in a file, or malice.
MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class _Input:
    spec: InputSpec
    role: Role
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Assumed:
    """The size of free dimensions, and the shape of what is declared a single number; `batch` is for those of rows."""

    free: int
    of_scalar: tuple[int, ...] = ()
    batch: int | None = None

    def size_of(self, dim: str | int | None, axis: int, batches: Collection[str]) -> int:
        """The size of a dimension: one that comes first in some input is that of a batch in all of them."""
        if isinstance(dim, int):
            return dim
        return self.free if self.batch is None or (axis and dim not in batches) else self.batch


# ONNX Runtime takes an array of any shape for a declared number: exporters declare one where they know no shape.
_ASSUMED = [
    *(_Assumed(size) for size in FREE_SIZES),
    *(_Assumed(size, batch=1) for size in LONG_SIZES),
    *(_Assumed(size, (size,)) for size in FREE_SIZES[1:]),
]


class SyntheticSource(Source):
    """`rows` seeded samples for any model."""

    kind = "synthetic"
    where = "synthetic inputs"

    def __init__(self, model: ir.Model, rows: int, distribution: Distribution, seed: int) -> None:
        known = roles(model)
        self.rows = rows
        self._distribution: Distribution = distribution
        self._seed = seed
        specs = input_specs(model)
        self._batches = frozenset(dim for spec in specs for dim in spec.shape[:1] if isinstance(dim, str))
        self._inputs = [_Input(spec, known[spec.name], self._fixed(spec, _ASSUMED[0])) for spec in specs]
        self._assumed = self._running(model)
        self._inputs = [_Input(spec, known[spec.name], self._fixed(spec, self._assumed)) for spec in specs]
        self.warnings = tuple(self._notes())

    def elsewhere(self) -> SyntheticSource:
        return self

    def _running(self, model: ir.Model) -> _Assumed:
        """The first sizes that the model runs with; the very first if it runs with none."""
        if all(given.shape == given.spec.shape != () for given in self._inputs):
            return _ASSUMED[0]
        try:
            session = ort_cpu.Session(model)
        except ModelError:  # why it does not load is told where it has to
            return _ASSUMED[0]
        has_number = any(given.spec.shape == () for given in self._inputs)
        tried = (assumed for assumed in _ASSUMED if has_number or not assumed.of_scalar)
        return next((assumed for assumed in tried if self._runs(session, assumed)), _ASSUMED[0])

    def _runs(self, session: ort_cpu.Session, assumed: _Assumed) -> bool:
        rng = np.random.default_rng(self._seed)
        try:
            sized = [replace(given, shape=self._fixed(given.spec, assumed)) for given in self._inputs]
            session.run({given.spec.name: self._values(given, rng) for given in sized})
        except (ModelError, DataError):
            return False
        return True

    def _fixed(self, spec: InputSpec, assumed: _Assumed) -> tuple[int, ...]:
        sizes = (assumed.size_of(dim, axis, self._batches) for axis, dim in enumerate(spec.shape))
        return _checked(spec, tuple(sizes) or assumed.of_scalar)

    def read(self, start: int, stop: int) -> Iterator[Feeds]:
        for row in range(start, stop):
            yield {
                given.spec.name: self._values(given, np.random.default_rng([self._seed, row, position]))
                for position, given in enumerate(self._inputs)
            }

    def _values(self, given: _Input, rng: np.random.Generator) -> np.ndarray:
        return _draw(rng, given, self._distribution).astype(given.spec.dtype, copy=False)

    def _notes(self) -> Iterator[str]:
        yield (
            f"no --data: inputs are synthetic ({self._distribution}, seed {self._seed}), so ranges and "
            "accuracy may be far from those of real inputs"
        )
        for given in self._inputs:
            if len(given.shape) > len(given.spec.shape):
                yield (
                    f"input {given.spec.name} is declared a single number, with which the model does not run: it is "
                    f"taken as {shape_text(given.shape)}; export the model with its shape, or give --data"
                )
            elif given.shape != given.spec.shape:
                sizes = f"{self._assumed.free}" + ("" if self._assumed.batch is None else ", those of batches as 1")
                yield (
                    f"input {given.spec.name} {shape_text(given.spec.shape)}: free dimensions are taken as {sizes}, "
                    f"{shape_text(given.shape)}; fix them with --dim NAME=SIZE"
                )
            if isinstance(given.role, Fixed):
                values = shape_text([f"{value:g}" for value in given.role.values])
                yield f"input {given.spec.name} is taken as {values}, as {given.role.node} demands it"
            if isinstance(given.role, TableIndex) and not given.role.known:
                yield f"input {given.spec.name} indexes a table of unknown size: its synthetic ids are the first row"


def _checked(spec: InputSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    if spec.dtype.kind not in "biuf" and not spec.dtype.name.startswith("bfloat"):
        raise DataError(
            "D121",
            f"input {spec.name}: no synthetic values for {spec.dtype}",
            allowed="numbers and bools",
            fix="give --data",
        )
    # A list of axes may well be empty; data without a single number tell nothing.
    least = 0 if spec.dtype.kind in "iu" else 1
    if any(dim < least for dim in shape) or math.prod(shape) * spec.dtype.itemsize > MOST_BYTES:
        raise DataError(
            "D144",
            f"input {spec.name} {shape_text(spec.shape)}: no synthetic values of this size",
            allowed=f"sizes from 1 up, and at most {MOST_BYTES >> 30} GiB a sample",
            fix="export the model with the sizes that it will run with, or give --data",
        )
    return shape


def _draw(rng: np.random.Generator, given: _Input, distribution: Distribution) -> np.ndarray:
    match given.role:
        case TableIndex(low, high):
            return rng.integers(low, high, given.shape)
        case Mask():
            return _live_keys_first(rng, given.shape)
        case Signal():
            limits = np.iinfo(given.spec.dtype.name)
            return rng.integers(limits.min, limits.max, given.shape, endpoint=True)
        case Fixed(values):
            return np.array(values).reshape(given.shape)
        case Interval(low, high) if given.spec.dtype.kind in "iu":
            return rng.integers(int(low), int(high), given.shape, endpoint=True)
        case Interval(low, high):
            return rng.uniform(low, high, given.shape)
        case Real():
            return rng.standard_normal(given.shape) if distribution == "normal" else rng.uniform(-1, 1, given.shape)


def _live_keys_first(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A random number of ones, at least one, then zeros, along the last axis."""
    if not shape:
        return np.ones(shape, np.int64)
    lengths = rng.integers(1, max(shape[-1], 1), (*shape[:-1], 1), endpoint=True)
    return np.arange(shape[-1]) < lengths
