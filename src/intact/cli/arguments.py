"""What was typed, as the library takes it: the model that a command is about, and flags over a file as settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intact.cli.options import Option
    from intact.events import Events
    from intact.pipeline.files import ModelFile
    from intact.settings.config import BuildConfig


def model_path(values: dict[str, Any]) -> Path:
    """The model that a command is about, given as its argument or by --onnx."""
    from intact.errors import SettingsError

    given = [path for path in (values.get("model"), values.get("onnx")) if path is not None]
    if not given:
        raise SettingsError("S140", "no model was given", fix="give its path as the first argument, or with --onnx")
    if len(given) == 2 and given[0] != given[1]:
        raise SettingsError("S141", f"two models were given: {given[0]} and --onnx {given[1]}", fix="leave one out")
    return Path(given[0])


@contextmanager
def model_file(values: dict[str, Any], config: BuildConfig, events: Events) -> Iterator[ModelFile]:
    """The model that a command is about as a file: the one given, or a Hugging Face model, exported for the command."""
    from intact.errors import SettingsError
    from intact.pipeline import files

    if values["hf"] is None and config.export is not None:
        raise SettingsError("S149", "settings of an export have no effect on an ONNX file", fix="give --hf, or no such")
    if values["hf"] is None:
        yield files.ModelFile(model_path(values), config)
        return
    if values["model"] is not None or values["onnx"] is not None:
        raise SettingsError("S141", f"two models were given: a file and --hf {values['hf']}", fix="leave one out")
    with files.exported(values["hf"], config, events=events) as given:
        yield given


def settings(values: dict[str, Any], *groups: Iterable[Option]) -> Any:
    """What the user set, in flags over a file, as a BuildConfig that knows nothing else."""
    from intact.settings.config import BuildConfig, merge, read_settings

    _check_symmetry(values)
    file = read_settings(values["config"]) if values.get("config") is not None else {}
    flags: dict[str, Any] = {}
    for option in (option for group in groups for option in group):
        value = values.get(option.name)
        if option.setting and value is not None:
            flags = merge(flags, _nested(option.setting, _plain(option.name, value)))
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


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    return {path[0]: _nested(path[1:], value) if len(path) > 1 else value}
