"""Encoding files: told apart by their content, read and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from intact.errors import SettingsError
from intact.model import io
from intact.quantization.encodings import aimet, ort_overrides
from intact.quantization.encodings.given import GivenGrid
from intact.quantization.encodings.of_model import of_model
from intact.settings import hand_written
from intact.settings.named_files import no_encodings, unread

FORMATS: dict[str, Callable[[Mapping[str, GivenGrid]], Mapping[str, object]]] = {
    "aimet": partial(aimet.render, version="1.0.0"),
    **{f"aimet-{version}": partial(aimet.render, version=version) for version in aimet.VERSIONS},
    "ort": ort_overrides.render,
}


def read_encodings(path: Path) -> dict[str, GivenGrid]:
    """The grids of an encodings file of any known format, by tensor."""
    try:
        content = hand_written.parse_json(hand_written.read(path))
    except OSError as error:
        raise no_encodings(path, unread(error)) from None
    except ValueError as error:
        raise no_encodings(path, f"is not JSON: {error}") from None
    content = content.get("TensorQuantOverrides", content) if isinstance(content, dict) else content
    if isinstance(content, dict) and aimet.is_aimet(content):
        return aimet.parse(content, str(path))
    if isinstance(content, dict) and ort_overrides.is_overrides(content):
        return ort_overrides.parse(content, str(path))
    raise no_encodings(path, "holds no encodings")


def load(path: Path) -> dict[str, GivenGrid]:
    """The grids of an encodings file, or of a model with Q/DQ nodes."""
    return of_model(io.load(path)) if path.suffix.lower() == ".onnx" else read_encodings(path)


def text(given: Mapping[str, GivenGrid], form: str) -> str:
    """The file of these grids in one of FORMATS."""
    if form not in FORMATS:
        raise SettingsError("S162", f"unknown format {form!r}", allowed=", ".join(FORMATS))
    return json.dumps(FORMATS[form](given), indent=2) + "\n"
