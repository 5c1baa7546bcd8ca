"""Samples on their way to a job and back: arrays in a file, by the numbers of the sample and of the name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np

from intact import scratch


class SamplesOrder(TypedDict):
    """The part of an order that brings samples: their number, the names of their arrays, and the files."""

    names: list[str]
    samples: int
    inputs: str
    outputs: str


COUNT = ".count"
"""Ends the name of the file, beside the outputs, that gets a byte for each sample that a job has run."""


class SamplesRun:
    """Tells of each sample that jobs have run, as often as somebody looks."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._sizes: dict[Path, int] = {}

    def add(self, order: SamplesOrder) -> None:
        """Watch the samples of one more order."""
        self._sizes[Path(order["outputs"] + COUNT)] = 0

    def look(self) -> None:
        """Tell what was run since the last look; a file that is gone has been counted before."""
        for path, known in self._sizes.items():
            with contextlib.suppress(FileNotFoundError):
                self._sizes[path] = path.stat().st_size
            for _ in range(self._sizes[path] - known):
                self._done()


@contextmanager
def sent(samples: Sequence[Mapping[str, np.ndarray]]) -> Iterator[SamplesOrder]:
    """Samples in a file, for a job, until the block ends."""
    names = list(samples[0]) if samples else []
    with scratch.folder("samples") as folder:
        inputs, outputs = (str(Path(folder, name)) for name in ("inputs.npz", "outputs.npz"))
        _save(inputs, ([sample[name] for name in names] for sample in samples))
        yield {"names": names, "samples": len(samples), "inputs": inputs, "outputs": outputs}


def received(order: SamplesOrder, names: Sequence[str]) -> list[dict[str, np.ndarray]]:
    """The results of a job, one dictionary a sample; `names` are those of its outputs, in order."""
    return list(_load(order["outputs"], names, order["samples"]))


def each(order: SamplesOrder) -> Iterator[dict[str, np.ndarray]]:
    """The samples of an order, one after the other; for a job."""
    return _load(order["inputs"], order["names"], order["samples"])


def answer(order: SamplesOrder, results: Iterable[Sequence[np.ndarray]]) -> None:
    """Save the outputs of every sample, and count them; for a job."""
    _save(order["outputs"], _counted(results, order["outputs"] + COUNT))


def _counted(results: Iterable[Sequence[np.ndarray]], path: str) -> Iterator[Sequence[np.ndarray]]:
    with open(path, "wb", buffering=0) as count:
        for result in results:
            yield result
            count.write(b".")


def _save(path: str, rows: Iterable[Sequence[np.ndarray]]) -> None:
    arrays = {f"{row}.{index}": value for row, values in enumerate(rows) for index, value in enumerate(values)}
    # mypy takes the keyword arguments of numpy's stub for its flags.
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _load(path: str, names: Sequence[str], count: int) -> Iterator[dict[str, np.ndarray]]:
    with np.load(path, allow_pickle=False) as arrays:
        for row in range(count):
            yield {name: arrays[f"{row}.{index}"] for index, name in enumerate(names)}
