"""What was typed, as the library takes it: the model that a command is about, and flags over a file as settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intact.cli.options import Option


def model_path(values: dict[str, Any]) -> Path:
    """The model that a command is about, given as its argument or by --onnx."""
    from intact.api.request import one_of

    return one_of(values.get("model"), values.get("onnx"))


def source(values: dict[str, Any]) -> dict[str, Any]:
    """The model that a command is about as the API takes it: a file, or the name of a Hugging Face model."""
    given = values["model"] is not None or values["onnx"] is not None
    file = {"model": model_path(values)} if given or values["hf"] is None else {}
    return {**file, "hf": values["hf"]}


def settings(values: dict[str, Any], *groups: Iterable[Option]) -> Any:
    """What the user set, in flags over a file, as a BuildConfig that knows nothing else."""
    from intact.settings.config import BuildConfig, merge, read_settings
    from intact.settings.keywords import nested

    _check_symmetry(values)
    file = read_settings(values["config"]) if values.get("config") is not None else {}
    flags: dict[str, Any] = {}
    for option in (option for group in groups for option in group):
        value = values.get(option.name)
        if option.setting and value is not None:
            flags = merge(flags, nested(option.setting, _plain(option.name, value)))
    alone = BuildConfig.from_dict(file)  # a mistake in the file is one, even where a flag covers it
    if "quant" in flags and alone.compile.quant is not None:
        flags = merge(flags, {"compile": {"quant": flags.pop("quant")}})
    return BuildConfig.from_dict(merge(file, flags))


def _check_symmetry(values: dict[str, Any]) -> None:
    """Two flags for one setting may both be given, if they agree."""
    from intact.errors import SettingsError

    flag, text = values.get("weight_symmetric"), values.get("weight_symmetry")
    if flag is not None and text is not None and flag is not _symmetric(text):
        raise SettingsError("S148", f"--weight-symmetry {text} and the flag beside it disagree", fix="leave one out")


def _plain(name: str, value: Any) -> Any:
    if name == "dim":
        # The last "=" splits: a dimension may be called "a=b", a size may not.
        pairs = [text.rpartition("=") for text in _with_equals("--dim", value)]
        return {key: _integer(key, size) for key, _, size in pairs}
    if name == "weight_symmetry":
        return _symmetric(value)
    if name == "ep_option":
        return {key: rest for key, _, rest in (text.partition("=") for text in _with_equals("--ep-option", value))}
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


def _integer(name: str, text: str) -> int:
    from intact.errors import SettingsError

    if not text.isdecimal() or int(text) < 1:
        raise SettingsError("S143", f"--dim {name}={text}: a size is a whole number from 1")
    return int(text)
