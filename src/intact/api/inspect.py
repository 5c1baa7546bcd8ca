"""`intact.inspect`: what is in a model."""

from __future__ import annotations

from pathlib import Path

from intact.model import detect, inspection, io
from intact.results import InspectedModel
from intact.settings.keywords import AnyPath


def inspect(model: AnyPath) -> InspectedModel:
    """Tell a model's inputs, outputs, operators and size, and whether it is quantized, as it is in its file."""
    loaded = io.load(Path(model))
    quantized = detect.detect(loaded)
    return InspectedModel(
        path=str(model), **inspection.inspect(loaded), quantized=str(quantized) if quantized else None
    )
