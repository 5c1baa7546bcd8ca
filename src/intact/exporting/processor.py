"""The image processor of a Hugging Face model: the size of images, and the scale of pixels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from intact.runtime import hub
from intact.runtime.hub import Repository

if TYPE_CHECKING:
    import transformers


class ImageProcessor(TypedDict, total=False):
    """The settings of an image processor that intact reads; a size is a number, a pair, or by name."""

    size: int | list[int] | dict[str, int]
    crop_size: int | list[int] | dict[str, int]
    do_center_crop: bool
    do_rescale: bool
    rescale_factor: float
    do_normalize: bool
    image_mean: float | list[float]
    image_std: float | list[float]


def read_processor(repository: Repository) -> ImageProcessor:
    """The settings of the image processor, empty where the repository has none."""
    own = hub.file_of(repository, "preprocessor_config.json")
    shared = hub.file_of(repository, "processor_config.json") if own is None else None
    found: ImageProcessor = {}
    if own is not None:
        found = json.loads(own.read_text(encoding="utf-8"))
    elif shared is not None:
        found = json.loads(shared.read_text(encoding="utf-8")).get("image_processor", {})
    return found


def image_size(config: transformers.PretrainedConfig, processor: ImageProcessor) -> list[int] | None:
    """Height and width of images, by the config of the model or else by its image processor; None: neither says."""
    crops = processor.get("crop_size") if processor.get("do_center_crop") else None
    for found in (getattr(config, "image_size", None), crops, processor.get("size")):
        if isinstance(found, int):
            return [found, found]
        if isinstance(found, list | tuple) and len(found) == 2:
            return [int(found[0]), int(found[1])]
        if isinstance(found, dict) and found:
            square = found.get("shortest_edge")
            height, width = found.get("height", square), found.get("width", square)
            if isinstance(height, int) and isinstance(width, int):
                return [height, width]
    return None


def pixels(processor: ImageProcessor) -> dict[str, list[float]]:
    """Mean and deviation of pixels of 0 to 1 that come to what the image processor does; empty: it does not say."""
    if not processor:
        return {}
    factor = 255.0 * (processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1.0)
    if not processor.get("do_normalize", True):
        return {"mean": [0.0], "std": [1 / factor]}
    if "image_mean" not in processor or "image_std" not in processor:
        return {}
    mean, std = (np.atleast_1d(value) / factor for value in (processor["image_mean"], processor["image_std"]))
    return {"mean": mean.tolist(), "std": std.tolist()}
