"""Settings as TOML with a comment at each: what was asked for stands, and the rest can be uncommented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from textwrap import wrap

from pydantic import BaseModel

from intact.settings.config import BuildConfig

HEADER = (
    "Settings of intact, for --config. Flags override what stands here. Lines that begin with # say what follows from "
    "the rest: uncomment one to fix its value."
)
_BARE = re.compile(r"[\w-]+")
_WIDTH = 110


def commented(resolved: BuildConfig, asked: BuildConfig) -> str:
    """A settings file that means `resolved`: what was `asked` for, the precision and the device; the rest commented."""
    live = asked.model_dump(mode="json", exclude_unset=True)
    live["precision"] = resolved.precision
    live["compile"] = {"device": resolved.compile.device, **live.get("compile", {})}
    return "\n".join([*_comment(HEADER), *_table(resolved, live, ())]) + "\n"


def _table(settings: BaseModel, live: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """Plain values first, for what follows the header of a table belongs to it."""
    fields = type(settings).model_fields
    plain = [name for name in fields if not isinstance(getattr(settings, name), BaseModel)]
    values = settings.model_dump(mode="json")
    for name in plain:
        yield from ("", *_comment(fields[name].description or ""))
        mark = "" if name in live and values[name] is not None else "# "
        yield f"{mark}{_key(name)} = {_value(values[name])}".rstrip()
    for name in (name for name in fields if name not in plain):
        below, inner = live.get(name), (*path, name)
        yield from ("", *_comment(fields[name].description or ""), f"[{'.'.join(map(_key, inner))}]")
        yield from _table(getattr(settings, name), below if isinstance(below, dict) else {}, inner)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH)]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: object) -> str:
    """A value as TOML writes it; nothing for what TOML cannot say, which is that something is unset."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        entries = [f"{_key(key)} = {_value(entry)}" for key, entry in value.items() if entry is not None]
        return f"{{ {', '.join(entries)} }}" if entries else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's strings, numbers and booleans are TOML's too; delete alone may stand in JSON's strings as it is.
    return json.dumps(value).replace("\x7f", "\\u007f")
