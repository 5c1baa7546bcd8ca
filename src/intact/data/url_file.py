"""A file behind a URL that fsspec opens: s3://…, https://…, file:///…; each process reads it by itself."""

from __future__ import annotations

import importlib
from pathlib import Path, PurePosixPath
from typing import IO, Any

from intact.errors import DataError, NotAvailable
from intact.records import dataclass
from intact.runtime import cluster


@dataclass(frozen=True, slots=True)
class UrlFile:
    """A URL with the part of the interface of `Path` that reading arrays needs."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    def open(self, mode: str) -> IO[bytes]:
        """Open the file as a stream that can seek."""
        try:
            stream: IO[bytes] = _fsspec(self.url).open(self.url, mode).open()
        # Each of its file systems has exceptions of its own.
        except Exception as problem:
            raise DataError("D152", f"{self.url}: cannot be read: {type(problem).__name__}: {problem}") from problem
        return stream

    def size(self) -> int:
        """The bytes of the file."""
        with self.open("rb") as stream:
            return stream.seek(0, 2)

    def resolve(self) -> UrlFile:
        """The file itself: a URL means the same everywhere."""
        return self


AnyFile = Path | UrlFile


def size_of(path: AnyFile) -> int:
    """The bytes of a file."""
    return path.size() if isinstance(path, UrlFile) else path.stat().st_size


def url_file(source: str) -> UrlFile:
    """The file behind a URL; only work on a cluster may open the sockets that it takes."""
    if cluster.current() is None:
        raise DataError(
            "D153", f"{source}: a URL is read by the workers of a cluster", fix="download it, or give --cluster local"
        )
    return UrlFile(source)


def _fsspec(url: str) -> Any:
    """The package that opens URLs."""
    try:
        return importlib.import_module("fsspec")
    except ImportError as problem:
        raise NotAvailable("E192", f"{url}: fsspec is not installed", fix='pip install "intact[cluster]"') from problem
