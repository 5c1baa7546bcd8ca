"""Files that are nearly right: drawn by hypothesis, as edits of right ones."""

from __future__ import annotations

import re
from collections.abc import Callable

from google.protobuf.message import Message
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy], object]

NUMBERS = [0, 1, -1, 2, 3, 7, 8, 21, 127, 128, 255, 256, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40]
HUGE = [(1 << 63) - 1, -(1 << 63), 1 << 62]
WORDS = ["", "x", "y", "/", "..", "a" * 300, "\0", "é", "x:0", "9" * 40, "-1", "1e400", "nan", "weights.bin", "Relu"]
TOKENS = [
    *("[", "]", "{", "}", "=", ",", '"', "'", ".", ":", "\n", "#", "[[", "]]", "true", "null", "inf", "nan", "1e400"),
    *("-1", "0", "3", "[]", "{}", '""', "'banana'", '"uint8"', '"int4"', "9" * 30, "1979-05-27", "\\u0000", "\x00"),
]
_WORD = re.compile(r"[\w.-]+|\s+|.", re.DOTALL)


def edited_bytes(content: bytes, draw: Draw) -> bytes:
    """A few bytes changed, cut out, doubled or put in."""
    result = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(len(result) - 1, 0)))
        stop = min(len(result), start + draw(st.sampled_from([1, 2, 8, 64, 512])))
        part = bytes(result[start:stop])
        result[start:stop] = draw(st.sampled_from([b"", part * 2, part[::-1], b"\0" * len(part), b"\xff" * len(part)]))
        if draw(st.booleans()):
            result[start:start] = draw(st.binary(max_size=8))
    return bytes(result)


def edited_text(text: str, draw: Draw) -> str:
    """A few words changed, dropped, doubled or put in."""
    words = _WORD.findall(text)
    for _ in range(draw(st.integers(1, 4))):
        if not words:
            break
        place = draw(st.integers(0, len(words) - 1))
        new = draw(st.sampled_from([*TOKENS, words[draw(st.integers(0, len(words) - 1))]]))
        how = draw(st.sampled_from(["replace", "drop", "insert", "cut"]))
        words[place : place + (0 if how == "insert" else 1)] = [] if how == "drop" else [str(new)]
        if how == "cut":
            del words[place + draw(st.integers(1, 30)) :]
    return "".join(words)


def edit_message(message: Message, draw: Draw) -> None:
    """A few fields changed, somewhere in a message and those in it."""
    for _ in range(draw(st.integers(1, 3))):
        _edit_one(message, draw)


def _edit_one(message: Message, draw: Draw) -> None:
    fields = [field for field, _ in message.ListFields()]
    field = draw(st.sampled_from([*fields, *message.DESCRIPTOR.fields]))
    if field.is_repeated:
        _edit_list(getattr(message, field.name), field, draw)
    elif field.type == field.TYPE_MESSAGE:
        if message.HasField(field.name) and draw(st.integers(0, 9)) > 0:
            _edit_one(getattr(message, field.name), draw)
        else:
            message.ClearField(field.name)
    elif draw(st.integers(0, 4)) == 0:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), draw))


def _edit_list(items, field, draw: Draw) -> None:  # type: ignore[no-untyped-def]
    if not items:
        if field.type != field.TYPE_MESSAGE:
            items.append(_scalar(field, None, draw))
        return
    place = draw(st.integers(0, len(items) - 1))
    how = draw(st.sampled_from(["inside", "inside", "inside", "drop", "double", "swap"]))
    other = draw(st.integers(0, len(items) - 1))
    if how == "drop":
        del items[place]
    elif how == "double":
        items.append(items[place])
    elif field.type == field.TYPE_MESSAGE and how == "inside":
        _edit_one(items[place], draw)
    elif field.type == field.TYPE_MESSAGE:
        first, second = type(items[place])(), type(items[place])()
        first.CopyFrom(items[place])
        second.CopyFrom(items[other])
        items[place].CopyFrom(second)
        items[other].CopyFrom(first)
    else:
        items[place] = _scalar(field, items[other], draw)


def _scalar(field, old, draw: Draw):  # type: ignore[no-untyped-def]
    if field.type == field.TYPE_STRING:
        return draw(st.sampled_from([*WORDS, *([old] if isinstance(old, str) else [])]))
    if field.type == field.TYPE_BYTES:
        return edited_bytes(old, draw) if old else draw(st.binary(max_size=16))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return draw(st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")]))
    if field.type == field.TYPE_ENUM:
        return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64):
        return draw(st.sampled_from([*NUMBERS, *HUGE]))
    least, most = (
        (0, (1 << 32) - 1) if field.type in (field.TYPE_UINT32, field.TYPE_UINT64) else (-(1 << 31), (1 << 31) - 1)
    )
    return max(least, min(most, draw(st.sampled_from(NUMBERS))))
