"""The page about settings, from the classes that check them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from intact.settings.config import BuildConfig
from intact.settings.places import PLACES

HEAD = """\
# Settings

Made from the classes that check them. Everything can stand in a TOML or JSON file (`--config`; JSON Schema:
`intact schema config`; `intact init` writes a file with every setting explained). Flags override the file, the file
overrides the preset of the precision; the resolved settings are printed and stored in the manifest. There is one
quantization config, `[quant]`; setting `[compile.quant]` too is an error. Unknown keys are refused, with the nearest
right one.

```toml title="settings.toml"
precision = "w8a16"
[quant]
method = "percentile"
load_path = "inputs.npz"
[compile]
device = "qnn"
soc = "SM8550"
```

The last column names the flag, and so the keyword argument in Python, that sets the same.
"""
FLAGS = {place: name for name, place in PLACES.items()}


def settings_page() -> str:
    """Every setting with its type, its default and what it means."""
    return HEAD + "".join(_table(BuildConfig, (), "The build"))


def _table(model: type[BaseModel], path: tuple[str, ...], title: str) -> Iterator[str]:
    yield f"\n## {title}\n\n{(model.__doc__ or '').strip()}\n\n"
    yield "| key | values | default | meaning | flag |\n| --- | --- | --- | --- | --- |\n"
    inner = {name: found for name, field in model.model_fields.items() if (found := _model_of(field)) is not None}
    for name, field in model.model_fields.items():
        if name not in inner:
            yield _row((*path, name), field)
    for name, found in inner.items():
        if (*path, name) != ("compile", "quant"):
            yield from _table(found, (*path, name), f"[{'.'.join((*path, name))}]")


def _row(path: tuple[str, ...], field: FieldInfo) -> str:
    flag = FLAGS.get(path)
    said = " ".join((field.description or "").split()).replace("|", "\\|").replace("<", "&lt;")
    shown = f"`--{flag.replace('_', '-')}`" if flag else "–"
    return f"| `{path[-1]}` | {_values(field)} | {_default(field)} | {said} | {shown} |\n"


def _values(field: FieldInfo) -> str:
    text = getattr(field.annotation, "__name__", "") if isinstance(field.annotation, type) else str(field.annotation)
    text = re.sub(r"\b[a-z_]+(?:\.[a-z_]+)*\.(?=[A-Za-z])", "", text)
    choices = re.fullmatch(r"(?:Optional\[)?Literal\[(.*?)\]\]?(?: \| None)?", text)
    if choices is not None:
        return ", ".join(f"`{choice.strip(chr(39))}`" for choice in choices[1].split(", "))
    return f"`{text}`"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        made = field.default_factory() if field.default_factory is not None else None  # type: ignore[call-arg]
        return "–" if not made else f"`{made}`"
    return "–" if field.default is None else f"`{json.dumps(field.default)}`"


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The settings that a field holds, where it holds settings of its own."""
    kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
