"""The page about the Python API, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

import intact

HEAD = """\
# Python

`import intact` costs nothing; each name loads on first use. One function a command, with the names of the flags as
keyword arguments: what `**settings` takes is listed under [settings](settings.md). Errors are
[IntactError](#intacterror) with a [code](codes.md).
"""


def python_page() -> str:
    """Every public name."""
    names = [name for name in intact.__all__ if not name.startswith("_")]
    functions = sorted(name for name in names if name[0].islower())
    classes = sorted(name for name in names if name[0].isupper())
    return HEAD + "".join(part for name in (*functions, *classes) for part in _entry(name, getattr(intact, name)))


def _entry(name: str, found: object) -> Iterator[str]:
    yield f"\n## {name}\n\n"
    if inspect.isfunction(found):
        yield f"```python\n{_signature(name, found)}\n```\n\n"
    yield _paragraphs(inspect.getdoc(found) or "") + "\n"
    if isinstance(found, type) and dataclasses.is_dataclass(found):
        yield "\n| field | type |\n| --- | --- |\n"
        yield from (f"| `{field.name}` | `{field.type}` |\n" for field in dataclasses.fields(found))


def _signature(name: str, function: object) -> str:
    """A signature, one argument a line where there are several."""
    text = str(inspect.signature(function)).replace("'", "")  # type: ignore[arg-type]
    arguments, _, result = text.rpartition(" -> ")
    inner = arguments[1:-1]
    parts = re.split(r", (?![^\[(]*[\])])", inner) if inner else []
    lines = "".join(f"\n    {part}," for part in parts)
    return f"intact.{name}({lines}\n) -> {result}" if len(parts) > 1 else f"intact.{name}({inner}) -> {result}"


def _paragraphs(text: str) -> str:
    """A docstring as Markdown: an example that `::` announces is code."""
    return re.sub(r"::\n\n((?:    .*\n?|\n)+)", lambda found: f":\n\n```python\n{_dedented(found[1])}\n```\n", text)


def _dedented(code: str) -> str:
    return "\n".join(line[4:] for line in code.rstrip().splitlines())
