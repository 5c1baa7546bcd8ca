"""Calibration and test inputs: arrays, images, text, what a Python function gives, or made up from the graph.

::

    inputs = load(model, "images.npz", samples=128)
    for feeds in inputs.calibration:      # one dict of arrays by input name at a time
        session.run(None, feeds)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.data.dataset import MOST_HELD_BACK, CalibrationAndTest, Dataset, Source, held_back, split
from intact.data.images import open_images
from intact.data.input_specs import Feeds, InputSpec, input_specs
from intact.data.lent import is_lent, open_lent
from intact.data.npz import is_array_file, open_arrays
from intact.data.python import CallableSource
from intact.data.synthetic import SyntheticSource
from intact.data.text import SUFFIX, open_text
from intact.data.url_file import url_file
from intact.errors import DataError
from intact.records import dataclass
from intact.settings.config import Distribution, ImageConfig
from intact.settings.named_files import FUNCTION, INPUTS, SAVE, URL, no_inputs, unread

__all__ = [
    "CalibrationAndTest",
    "Dataset",
    "Feeds",
    "InputSpec",
    "Reading",
    "Source",
    "held_back",
    "input_specs",
    "load",
]


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings of single sources: the preparation of images, the tokenizer of text, the drawing of synthetic inputs.

    `fixed` are inputs that the model does not take any more, with the values that arrays of them have to hold.
    """

    images: ImageConfig = field(default_factory=ImageConfig)
    tokenizer: str | None = None
    distribution: Distribution = "normal"
    seed: int = 0
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)


def load(
    model: ir.Model,
    source: str | None,
    *,
    samples: int,
    test_source: str | None = None,
    reading: Reading | None = None,
) -> CalibrationAndTest:
    """Inputs to calibrate on and others to verify on, every value checked before anything else is done.

    `source` is an .npz or .npy file (or its URL, on a cluster), a folder of images, a .txt file for a tokenizer,
    `module:function`, or None for synthetic inputs. Without `test_source` the last quarter of the rows is held back for
    the test, 4 to 16 of them, or none of fewer than 8. Of text, of a function, or of synthetic inputs, the first
    `samples + 16` rows count.
    """
    limit = samples + MOST_HELD_BACK
    specs = input_specs(model)
    reading = reading or Reading()
    opened = partial(_open, specs=specs, limit=limit, reading=reading)
    rows = SyntheticSource(model, limit, reading.distribution, reading.seed) if source is None else opened(source)
    test = None if test_source is None else opened(test_source)
    if reading.images != ImageConfig() and "images" not in (rows.kind, test.kind if test is not None else None):
        raise DataError(
            "D128", "image settings have no effect: the inputs are no folder of images", fix="leave them out"
        )
    return split(rows, samples, test)


def _open(source: str, specs: tuple[InputSpec, ...], limit: int, reading: Reading) -> Source:
    if is_lent(source):
        return open_lent(source, specs, limit, reading.fixed)
    if URL in source:
        return open_arrays(url_file(source), specs, reading.fixed)
    path = Path(source)
    if path.is_file():
        return _open_file(path, specs, limit, reading)
    if path.is_dir():
        return open_images(path, specs, reading.images)
    if FUNCTION.fullmatch(source):
        return CallableSource(source, specs, limit)
    raise no_inputs(source, "there is no such file")


def _open_file(path: Path, specs: tuple[InputSpec, ...], limit: int, reading: Reading) -> Source:
    try:
        if is_array_file(path):
            return open_arrays(path, specs, reading.fixed)
        if path.suffix.lower() == SUFFIX:
            return open_text(path, specs, limit, reading.tokenizer)
    except OSError as error:
        raise no_inputs(path, unread(error)) from None
    raise DataError("D102", f"{path}: is neither an .npz nor an .npy nor a .txt file", allowed=INPUTS, fix=SAVE)
