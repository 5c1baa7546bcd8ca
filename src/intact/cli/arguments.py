"""Values of flags as the library takes them: the model that a command is about, and settings over a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from intact.cli.options import Flags, Option
    from intact.settings.config import BuildConfig


class GivenModel(TypedDict):
    """The model that a command is about as the API takes it: a file, or the name of a Hugging Face model."""

    model: Path | None
    hf: str | None


def model_path(values: Flags) -> Path:
    """The model file that a command is about, given as its argument or by --onnx."""
    from intact.api.given_model import one_of

    return there(one_of(values["model"], values["onnx"]))[0]


def there(*models: Path | None) -> list[Path]:
    """The paths of models that were given, if there are files: a wrong path is told before anything is loaded."""
    from intact.api.given_model import check_there

    given = [model for model in models if model is not None]
    check_there(*given)
    return given


def source(values: Flags) -> GivenModel:
    """The model that a command is about, which may be one of Hugging Face."""
    from intact.api.given_model import refuse_two

    refuse_two(values["model"] or values["onnx"], values["hf"])
    given = values["model"] is not None or values["onnx"] is not None
    return {"model": model_path(values) if given or values["hf"] is None else None, "hf": values["hf"]}


def settings(values: Mapping[str, object], *groups: Iterable[Option]) -> BuildConfig:
    """Lay the flags of these groups over a file of settings; the result knows nothing but what the user set."""
    from intact.settings.config import BuildConfig, checked_settings, merge
    from intact.settings.places import nested

    _check_symmetry(values)
    path = values.get("config")
    # A mistake in the file is one, even where a flag covers it.
    file = checked_settings(path) if isinstance(path, Path) else {}
    if isinstance(path, Path) and isinstance(output := values.get("output"), Path):
        from intact.api.request import refuse_inputs

        refuse_inputs(output, [path])
    flags: dict[str, object] = {}
    for option in (option for group in groups for option in group):
        value = values.get(option.name)
        if option.setting and value is not None:
            flags = merge(flags, nested(option.setting, _plain(option.name, value)))
    alone = BuildConfig.from_dict(file)
    if "quant" in flags and alone.compile.quant is not None:
        flags = merge(flags, {"compile": {"quant": flags.pop("quant")}})
    return BuildConfig.from_dict(merge(file, flags))


def _check_symmetry(values: Mapping[str, object]) -> None:
    """Refuse two flags for one setting that do not agree."""
    from intact.errors import SettingsError

    flag, text = values.get("weight_symmetric"), values.get("weight_symmetry")
    if flag is not None and isinstance(text, str) and flag is not _symmetric(text):
        raise SettingsError("S148", f"--weight-symmetry {text} and the flag beside it disagree", fix="leave one out")


def _plain(name: str, value: object) -> object:
    """The value of a flag as its setting takes it."""
    if name == "dim" and isinstance(value, list):
        # The last "=" splits: a dimension may be called "a=b", a size may not.
        pairs = [text.rpartition("=") for text in _with_equals("--dim", value)]
        return {key: _integer(key, size) for key, _, size in pairs}
    if name == "set" and isinstance(value, list):
        return {
            key: _json(key, rest) for key, _, rest in (text.partition("=") for text in _with_equals("--set", value))
        }
    if name == "weight_symmetry" and isinstance(value, str):
        return _symmetric(value)
    if name in ("ep_option", "state") and isinstance(value, list):
        given = _with_equals(f"--{name.replace('_', '-')}", value)
        return {key: rest for key, _, rest in (text.partition("=") for text in given)}
    return value


def _symmetric(text: str) -> bool:
    from intact.errors import SettingsError

    known = {"symmetric": True, "asymmetric": False}
    if text not in known:
        raise SettingsError("S147", f"--weight-symmetry {text!r} is not known", allowed=", ".join(known))
    return known[text]


def _with_equals(flag: str, values: list[str]) -> list[str]:
    from intact.errors import SettingsError

    bad = [text for text in values if "=" not in text.lstrip("=")]
    if bad:
        raise SettingsError("S142", f"{flag} {bad[0]!r}: expected name=value")
    return values


def _json(name: str, text: str) -> object:
    from intact.errors import SettingsError

    try:
        return json.loads(text)
    except ValueError:
        allowed = "a value as JSON: 16000, 0.5, true, [1, 2]"
        raise SettingsError("S109", f"--set {name}={text}: the value cannot be read", allowed=allowed) from None


def _integer(name: str, text: str) -> int:
    from intact.errors import SettingsError

    if not text.isdecimal() or int(text) < 1:
        raise SettingsError("S143", f"--dim {name}={text}: a size is a whole number from 1")
    return int(text)
