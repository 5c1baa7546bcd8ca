"""Samples that other processes read themselves, each checked against the digest that it had here."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from intact.data.dataset import Dataset, Source
from intact.data.input_profile import digest
from intact.data.input_specs import Feeds
from intact.errors import DataError
from intact.records import dataclass
from intact.runtime import worker_terms


class FiledSource(Source):
    """Samples that were written down, a file each: what a function, a tokenizer or a model gave."""

    kind = "arrays"

    def __init__(self, folder: Path, rows: int) -> None:
        self.where, self.rows, self._folder = str(folder), rows, folder

    def read(self, start: int, stop: int) -> Iterator[Feeds]:
        # Written by this program into a folder that nobody else may write to.
        return (pickle.loads((self._folder / str(row)).read_bytes()) for row in range(start, stop))

    def elsewhere(self) -> FiledSource:
        return self


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Consecutive samples of a source, with their digests."""

    source: Source
    start: int
    digests: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.digests)

    def __iter__(self) -> Iterator[Feeds]:
        """The samples; one that is not what it was where the work was given out is refused."""
        last = self.start + len(self.digests)
        for row, (feeds, known) in enumerate(zip(self._read(last), self.digests, strict=True), self.start):
            if digest(feeds) != known:
                raise DataError(
                    "D150",
                    f"{self.source.where}: sample {row} is another for worker {worker_terms.name()}",
                    allowed="the same file for every worker, unchanged while they work",
                    fix="put the inputs into a folder that all workers see at the same path",
                )
            yield feeds

    def part(self, start: int, stop: int) -> SharedRows:
        """The samples from `start` up to `stop` of these."""
        return SharedRows(self.source, self.start + start, self.digests[start:stop])

    def _read(self, stop: int) -> Iterator[Feeds]:
        try:
            yield from self.source.read(self.start, stop)
        except OSError as problem:
            raise DataError(
                "D151",
                f"{self.source.where}: worker {worker_terms.name()} cannot read it: {problem.strerror or problem}",
                allowed="inputs in a folder that all workers see at the same path",
                fix="move the inputs there, or mount the folder on the workers",
            ) from problem


def shared(rows: Iterable[Mapping[str, np.ndarray]], folder: Path) -> SharedRows:
    """`rows` for other processes: files are read where they are, all else is written into `folder` first."""
    source = rows.source.elsewhere() if isinstance(rows, Dataset) else None
    if isinstance(rows, Dataset) and source is not None:
        return SharedRows(source, rows.start, rows.profile.digests)
    digests = tuple(_filed(feeds, folder / str(row)) for row, feeds in enumerate(rows))
    return SharedRows(FiledSource(folder, len(digests)), 0, digests)


def _filed(feeds: Mapping[str, np.ndarray], path: Path) -> bytes:
    if not path.exists():
        path.write_bytes(pickle.dumps(dict(feeds)))
    return digest(feeds)
