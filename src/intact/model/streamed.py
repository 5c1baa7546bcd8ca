"""A model in one file, written, and asked for its outputs, without a message that holds its weights.

A message that is turned into bytes is in memory three times: as itself, in a buffer that doubles as it grows, and as
the bytes. Here the message has empty tensors, and their bytes are put into it on their way to the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

# Numbers of fields in messages of ONNX: the graph of a model, an initializer and an output of a graph, name and bytes
# of a tensor, name of a value.
_GRAPH, _INITIALIZER, _OUTPUT, _NAME, _RAW_DATA, _NAME_OF_VALUE = 7, 5, 12, 8, 9, 1
_VARINT, _SIXTY_FOUR, _BYTES, _THIRTY_TWO = 0, 1, 2, 5

Message = bytes | mmap.mmap


def write(file: BinaryIO, message: bytes, arrays: Mapping[str, np.ndarray]) -> int:
    """Write the message of a model, with the bytes of these arrays in initializers that are empty; return its size."""
    begin, end = _only(message, _GRAPH)
    parts = list(_graph_parts(message, begin, end, arrays))
    size = sum(part.nbytes for part in parts)
    head = message[: begin - len(_varint(end - begin))] + _varint(size)
    file.write(head)
    for part in parts:
        file.write(part)
    file.write(message[end:])
    return len(head) + size + len(message) - end


def size_with(message: bytes, arrays: Mapping[str, np.ndarray]) -> int:
    """At least the bytes that `write` would write."""
    return len(message) + sum(array.nbytes for array in arrays.values())


def outputs_of(path: Path) -> list[str] | None:
    """The names of the outputs of the model in a file, of which nothing else is read; None where it is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as message:
            begin, end = _only(message, _GRAPH)
            if end > len(message):
                return None
            spans = [(start, stop) for number, start, stop in _fields(message, begin, end) if number == _OUTPUT]
            return [_name(message, start, stop, _NAME_OF_VALUE) for start, stop in spans]
    # A place behind the end, a field that is not there, one of a kind that is none, and an empty file.
    except (IndexError, StopIteration, KeyError, ValueError):
        return None


def _graph_parts(message: bytes, begin: int, end: int, arrays: Mapping[str, np.ndarray]) -> Iterator[memoryview]:
    """The content of the graph, with arrays where they belong."""
    view, done = memoryview(message), begin
    for number, start, stop in _fields(message, begin, end):
        array = arrays.get(_name(message, start, stop)) if number == _INITIALIZER else None
        if array is None:
            continue
        empty, _ = _only(message, _RAW_DATA, start, stop)
        length = _varint(array.nbytes)
        # The length of nothing is one byte.
        yield view[done : start - len(_varint(stop - start))]
        yield memoryview(_varint(stop - start - 1 + len(length) + array.nbytes))
        yield view[start : empty - 1]
        yield memoryview(length)
        yield array.reshape(-1).view(np.uint8).data
        yield view[empty:stop]
        done = stop
    yield view[done:end]


def _name(message: Message, begin: int, end: int, field: int = _NAME) -> str:
    start, stop = _only(message, field, begin, end)
    return message[start:stop].decode()


def _only(message: Message, wanted: int, begin: int = 0, end: int | None = None) -> tuple[int, int]:
    """The begin and the end of the content of a field."""
    spans = _fields(message, begin, len(message) if end is None else end)
    return next((start, stop) for number, start, stop in spans if number == wanted)


def _fields(message: Message, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of the content of each field."""
    place = begin
    while place < end:
        tag, place = _number(message, place)
        kind = tag & 7
        if kind == _BYTES:
            length, place = _number(message, place)
        elif kind == _VARINT:
            length = _number(message, place)[1] - place
        else:
            length = {_SIXTY_FOUR: 8, _THIRTY_TWO: 4}[kind]
        yield tag >> 3, place, place + length
        place += length


def _number(message: Message, place: int) -> tuple[int, int]:
    """The number that is written at a place, and the place behind it."""
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
