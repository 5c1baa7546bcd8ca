"""Samples from a Python function, named as `module:function`.

The module is looked for where Python looks, and in the working directory. The function takes no arguments and
either yields (or returns a list of) samples, one dict of arrays by input name each, in the full shape of the
inputs; or returns one dict of arrays with samples on axis 0, read by the rule for `.npz` files. A model with one
input takes a bare array in place of a dict.

The function is called anew for every pass and must give the same samples each time; a fixed seed does it. Only
the samples that are needed are asked for, so a generator may be endless. What it prints goes to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from operator import attrgetter

import numpy as np

from intact.data.arrays import ArraySource, InMemory
from intact.data.dataset import Source
from intact.data.input_profile import Record, digest, record
from intact.data.input_specs import Feeds, InputSpec, check_feed, check_values
from intact.errors import DataError
from intact.model.garbage_pause import collecting
from intact.settings.config import nearest

_END = object()


class CallableSource(Source):
    """The first `limit` samples of a function; they are checked and recorded once, when the source is made."""

    kind = "callable"

    def __init__(
        self,
        reference: str,
        specs: tuple[InputSpec, ...],
        limit: int,
        *,
        function: Callable[[], object] | None = None,
    ) -> None:
        self.where = reference
        self._function = function
        self._specs = specs
        self._records = [self._checked(feed, row) for row, feed in enumerate(islice(self._feeds(), limit))]
        self.rows = len(self._records)
        if self.rows == 0:
            raise DataError("D109", f"{reference}: no samples", allowed="at least one", fix="yield at least one sample")

    def read(self, start: int, stop: int) -> Iterator[Feeds]:
        count = 0
        for row, feed in enumerate(islice(self._feeds(), stop)):
            if digest(feed) != self._records[row].digest:
                raise self._not_repeatable(f"sample {row} differs from one call to the next")
            count = row + 1
            if row >= start:
                yield feed
        if count < stop:
            raise self._not_repeatable(f"it gave {self.rows} samples or more at first, and then {count}")

    def records(self, start: int, stop: int) -> Iterator[Record]:
        return iter(self._records[start:stop])

    def _feeds(self) -> Iterator[Feeds]:
        samples = _call(self.where, self._function)
        if isinstance(samples, Mapping | np.ndarray):
            arrays = {
                name: InMemory(np.asarray(array)) for name, array in by_name(samples, self._specs, self.where).items()
            }
            whole = ArraySource(self._specs, arrays, "callable", self.where)
            yield from whole.read(0, whole.rows)
            return
        for row, sample in enumerate(_each(samples, self.where)):
            where = f"{self.where}, sample {row}"
            yield check_feed(self._specs, by_name(sample, self._specs, where), where)

    def _checked(self, feed: Feeds, row: int) -> Record:
        check_values(feed, f"{self.where}, sample {row}")
        return record(feed)

    def _not_repeatable(self, what: str) -> DataError:
        return DataError(
            "D119",
            f"{self.where}: {what}",
            allowed="the same samples in every call",
            fix="fix the seed inside the function, and open files and iterators anew in each call",
        )


def by_name(sample: object, specs: tuple[InputSpec, ...], where: str) -> Mapping[str, object]:
    """Arrays by input name; a model with one input takes a bare array."""
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, np.ndarray | np.generic) and len(specs) == 1:
        return {specs[0].name: sample}
    raise DataError(
        "D118",
        f"{where}: expected arrays by input name, found {type(sample).__name__}",
        allowed=f"a dict with {', '.join(spec.name for spec in specs)}; a bare array for one input",
        fix="yield dicts of numpy arrays",
    )


def _call(reference: str, function: Callable[[], object] | None) -> object:
    function = function or _resolve(reference)
    with _users_code(reference):
        return function()


def _resolve(reference: str) -> Callable[[], object]:
    module_name, function_name = reference.split(":")
    with _users_code(reference):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise DataError(
                "D115",
                f"{reference}: there is no module {error.name}",
                allowed=f"a module in {os.getcwd()} or on Python's path",
                fix="run from the folder that holds the module",
            ) from None
    try:
        function = attrgetter(function_name)(module)
    except AttributeError:
        raise DataError(
            "D116",
            f"{reference}: {module_name} has no {function_name}{nearest(function_name, dir(module))}",
            allowed="a function without arguments",
        ) from None
    if not callable(function):
        raise DataError("D116", f"{reference}: {function_name} is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def _each(samples: object, reference: str) -> Iterator[object]:
    """The samples one by one; what the user's generator raises carries the reference."""
    if not isinstance(samples, Iterable):
        raise DataError(
            "D118",
            f"{reference}: returned {type(samples).__name__}",
            allowed="a generator or list of samples, or a dict of arrays with samples on axis 0",
        )
    iterator = iter(samples)
    while True:
        with _users_code(reference):
            sample = next(iterator, _END)
        if sample is _END:
            return
        yield sample


@contextmanager
def _users_code(reference: str) -> Iterator[None]:
    """Let the working directory be imported from, and turn any exception into an error that quotes it.

    Standard output belongs to the program's own results, so what the user's code prints goes to stderr.
    """
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr), collecting():
            yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            "D117", f"{reference}: {type(error).__name__}: {error}", fix="repair the function; --debug shows where"
        ) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
