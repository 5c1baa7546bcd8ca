"""`.npz` files keyed by input name, and `.npy` files for models with one input.

`intact.data.arrays` has the rule by which rows become samples. Only one sample at a time is in memory: arrays
that `np.savez` wrote are read at their place in the file, those of `np.savez_compressed` are decompressed on the
way. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from tokenize import TokenError
from types import MappingProxyType
from typing import IO

import numpy as np
from numpy.lib import format as npy

from intact.data.arrays import ArraySource, without_fixed
from intact.data.input_specs import InputSpec
from intact.data.url_file import AnyFile, size_of
from intact.errors import DataError
from intact.records import dataclass

SKIP_BYTES = 1 << 20

_LOCAL_HEADER_BYTES = 30

# What zipfile raises for damage, encryption (RuntimeError) and unknown compression (NotImplementedError).
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file: `offset` bytes into the file, or into the decompressed `member` of a zip."""

    path: AnyFile
    member: str | None
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    def blocks(self, start: int, stop: int, size: int) -> Iterator[np.ndarray]:
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        with _readable(self.path, self.member) as stream:
            _skip(stream, self.offset + start * row_bytes)
            for row in range(start, stop, size):
                buffer = bytearray(size * row_bytes)
                _fill(stream, buffer, self.path, row)
                yield np.frombuffer(buffer, self.dtype).reshape(size, *self.shape[1:])

    def elsewhere(self) -> StoredArray:
        return replace(self, path=self.path.resolve())


def is_array_file(path: AnyFile) -> bool:
    """True if the content is that of an .npz or .npy file."""
    if _is_npy(path):
        return True
    with path.open("rb") as stream:
        return zipfile.is_zipfile(stream)


def claimed_bytes(path: AnyFile) -> int:
    """The bytes that all arrays of a file take, as their headers claim."""
    if _is_npy(path):
        with path.open("rb") as stream:
            found = [_header(stream, path, None, size_of(path), path.name)]
    else:
        found = list(_members(path).values())
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in found)


def open_arrays(
    path: AnyFile, specs: tuple[InputSpec, ...], fixed: Mapping[str, np.ndarray] = MappingProxyType({})
) -> ArraySource:
    """The samples of an .npz or .npy file, checked against the inputs of the model before any is read.

    An .npz may hold inputs that are `fixed` as well, with the values that they have.
    """
    where = str(path)
    if not _is_npy(path):
        return ArraySource(specs, without_fixed(_members(path), fixed, where), "npz", where)
    if len(specs) != 1:
        raise DataError(
            "D114",
            f"{where}: one array for a model with {len(specs)} inputs",
            allowed=", ".join(spec.name for spec in specs),
            fix="save an .npz with one array for each input, by name",
        )
    with path.open("rb") as stream:
        array = _header(stream, path, None, size_of(path), specs[0].name)
    return ArraySource(specs, {specs[0].name: array}, "npz", where)


def _is_npy(path: AnyFile) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX


def _members(path: AnyFile) -> dict[str, StoredArray]:
    with _damage_named(path), path.open("rb") as file, zipfile.ZipFile(file) as archive:
        return {_key(info): _member(archive, info, path) for info in archive.infolist()}


def _key(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(".npy")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: AnyFile) -> StoredArray:
    with archive.open(info) as stream:
        array = _header(stream, path, info.filename, info.file_size, _key(info))
    if info.compress_type != zipfile.ZIP_STORED:
        return array
    return StoredArray(path, None, _data_offset(path, info) + array.offset, array.shape, array.dtype)


def _data_offset(path: AnyFile, info: zipfile.ZipInfo) -> int:
    """The position of the first byte of a stored member: the local header's own lengths decide, not the directory's."""
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        name_bytes, extra_bytes = struct.unpack("<26xHH", stream.read(_LOCAL_HEADER_BYTES))
    return info.header_offset + _LOCAL_HEADER_BYTES + int(name_bytes) + int(extra_bytes)


def _header(stream: IO[bytes], path: AnyFile, member: str | None, total_bytes: int, name: str) -> StoredArray:
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran_order, dtype = read(stream)
    except (ValueError, TokenError) as error:
        raise _damaged(path, f"{name} is not a numpy array ({error})") from None
    if min(shape, default=0) < 0:
        raise _damaged(path, f"{name} has a dimension below zero")
    if fortran_order and len(shape) > 1:
        raise DataError(
            "D113",
            f"{path}: {name} is stored column by column, so its samples cannot be read one at a time",
            allowed="row-major arrays",
            fix="save np.ascontiguousarray(array)",
        )
    array = StoredArray(path, member, stream.tell(), shape, dtype)
    expected = array.offset + math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and total_bytes < expected:
        raise _damaged(path, f"{name} has {total_bytes} bytes of {expected}")
    return array


@contextmanager
def _readable(path: AnyFile, member: str | None) -> Iterator[IO[bytes]]:
    if member is None:
        with path.open("rb") as stream:
            yield stream
        return
    with (
        _damage_named(path),
        path.open("rb") as file,
        zipfile.ZipFile(file) as archive,
        archive.open(member) as stream,
    ):
        yield stream


@contextmanager
def _damage_named(path: AnyFile) -> Iterator[None]:
    """Turn what zipfile and its decompressors raise into an error that names the file."""
    try:
        yield
    except _ZIP_FAULTS as error:
        raise _damaged(path, str(error)) from None


def _skip(stream: IO[bytes], count: int) -> None:
    """Move `count` bytes on, in pieces where the stream has to be decompressed."""
    if not isinstance(stream, zipfile.ZipExtFile):
        stream.seek(count)
        return
    while count > 0:
        read = len(stream.read(min(count, SKIP_BYTES)))
        if read == 0:
            raise EOFError("it ends too early")
        count -= read


def _fill(stream: IO[bytes], buffer: bytearray, path: AnyFile, row: int) -> None:
    view = memoryview(buffer)
    while view:
        piece = stream.read(min(len(view), SKIP_BYTES))
        if not piece:
            raise _damaged(path, f"it ends in row {row}")
        view[: len(piece)] = piece
        view = view[len(piece) :]


def _damaged(path: AnyFile, what: str) -> DataError:
    return DataError(
        "D103",
        f"{path}: cannot be read as an .npz or .npy file: {what}",
        allowed="what np.savez, np.savez_compressed or np.save write",
        fix="save the file again",
    )
