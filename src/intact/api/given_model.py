"""The path of the model that a call is about. Loads nothing, so that a mistake in a call costs no time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intact.errors import SettingsError
from intact.model.ordinary_file import check_ordinary

if TYPE_CHECKING:
    from intact.settings.config import BuildConfig
    from intact.settings.keywords import AnyPath


def one_of(model: AnyPath | None, onnx: AnyPath | None) -> Path:
    """The model that was given in either of two ways."""
    if model is not None and onnx is not None and Path(model) != Path(onnx):
        raise SettingsError("S141", f"two models were given: {model} and --onnx {onnx}", fix="leave one out")
    return path_of(model if model is not None else onnx)


def refuse_two(model: AnyPath | None, hf: str | None) -> None:
    """Refuse a file beside a Hugging Face model."""
    if model is not None and hf is not None:
        raise SettingsError("S141", f"two models were given: {model} and --hf {hf}", fix="leave one out")


def refuse_alone(reference: AnyPath, others: Sequence[AnyPath]) -> None:
    """Refuse to compare a model with none."""
    if not others:
        raise SettingsError("S149", f"there is nothing to compare {reference} with", fix="give two or more models")


def path_of(model: AnyPath | None, config: BuildConfig | None = None) -> Path:
    """The path of a model file."""
    if model is None:
        raise SettingsError("S140", "no model was given", fix="give its path as the first argument, or with --onnx")
    if config is not None and config.export is not None:
        raise SettingsError("S149", "settings of an export have no effect on an ONNX file", fix="give --hf, or no such")
    return Path(model)


def check_there(*models: Path) -> None:
    """Refuse paths at which there is no file, before anything is loaded."""
    for model in models:
        check_ordinary(model)
