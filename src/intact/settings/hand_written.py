"""Files that people edit: read with care, parsed without surprises, and quoted by line when something is wrong."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

# Nobody writes more by hand, and the largest plans and encodings of tools have a tenth.
MOST_BYTES = 256 << 20
MOST_TOLD = 5

_NAME = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)"""
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_HEADER = re.compile(r"\s*\[\[?(.+?)\]\]?\s*(?:#.*)?$")
# As settings say it; the line is that of the key, not of the table around it.
_UNKNOWN = re.compile(r"unknown key (.+?)(?:;| \(|, unknown key)")


def read(path: Path) -> str:
    """The text of an ordinary file; an OSError for any other, which might never end, and a ValueError for no text."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not an ordinary file")
    if status.st_size > MOST_BYTES:
        raise ValueError(f"it has {status.st_size} bytes, and no more than {MOST_BYTES} are read")
    return path.read_text(encoding="utf-8")


def parse_toml(text: str) -> dict[str, object]:
    """The values of TOML; a ValueError for anything that cannot be parsed."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json(text: str) -> object:
    """The value of JSON without a key that stands twice; a ValueError for anything that cannot be parsed."""
    try:
        value: object = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def problems(error: ValidationError, path: Path, text: str) -> str:
    """List the problems that a schema has with a TOML file: line, key and reason of each."""
    found = error.errors(include_url=False)
    lines = lines_of(text)
    told = [_told(detail, path, lines) for detail in found[:MOST_TOLD]]
    return "\n  ".join([*told, *([f"and {len(found) - MOST_TOLD} more"] if len(found) > MOST_TOLD else [])])


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line of every key and table of TOML, counted from 1."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            found.setdefault((*table, *_parts(key[1])), number)
    return found


def nearest(name: str, known: list[str]) -> str:
    """`; did you mean …?` for a misspelt name, or nothing where no known name is near."""
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def hint(detail: ErrorDetails) -> str:
    """`; did you mean …?` where one of a few words was expected."""
    if detail["type"] != "literal_error":
        return ""
    return nearest(str(detail["input"]), re.findall(r"'([^']*)'", detail["ctx"]["expected"]))


def _told(detail: ErrorDetails, path: Path, lines: dict[tuple[str, ...], int]) -> str:
    keys = tuple(str(part) for part in detail["loc"])
    unknown = _UNKNOWN.search(detail["msg"])
    line = _nearest_line((*keys, unknown[1]) if unknown else keys, lines)
    where = ".".join(keys)
    message = detail["msg"].removeprefix("Value error, ")
    said = (
        message
        if detail["type"] in ("value_error", "missing")
        else f"{_short(detail['input'])}: {message}{hint(detail)}"
    )
    between = "" if not where else " = " if said != message else ": "
    return f"{path}{'' if line is None else f':{line}'}: {where}{between}{said}"


def _nearest_line(keys: Sequence[str], lines: dict[tuple[str, ...], int]) -> int | None:
    """The line of a key, or of the innermost table around it that has one."""
    return next((lines[tuple(keys[:end])] for end in range(len(keys), 0, -1) if tuple(keys[:end]) in lines), None)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _parts(key: str) -> tuple[str, ...]:
    """A dotted key as its parts, by the rules of TOML itself."""
    try:
        value: object = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return ()
    parts: list[str] = []
    while isinstance(value, dict):
        [(name, value)] = value.items()
        parts.append(name)
    return tuple(parts)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)} stands there twice")
    return result
