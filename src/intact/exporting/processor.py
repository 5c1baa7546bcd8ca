"""What the image processor of a Hugging Face model does to images: the size, and the scale of pixels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from intact.runtime import hub
from intact.runtime.hub import Repository


def read_processor(repository: Repository) -> dict[str, Any]:
    """The settings of the image processor, empty where the repository has none."""
    own = hub.file_of(repository, "preprocessor_config.json")
    if own is not None:
        return dict(json.loads(own.read_text(encoding="utf-8")))
    shared = hub.file_of(repository, "processor_config.json")
    return {} if shared is None else dict(json.loads(shared.read_text(encoding="utf-8")).get("image_processor", {}))


def image_size(config: Any, processor: Mapping[str, Any]) -> list[int] | None:
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


def pixels(processor: Mapping[str, Any]) -> dict[str, list[float]]:
    """Mean and deviation of pixels of 0 to 1 that come to what the image processor does; empty: it does not say."""
    if not processor:
        return {}
    factor = 255.0 * (processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1.0)
    if not processor.get("do_normalize", True):
        return {"mean": [0.0], "std": [1 / factor]}
    if "image_mean" not in processor or "image_std" not in processor:
        return {}
    mean, std = (np.atleast_1d(processor[key]) / factor for key in ("image_mean", "image_std"))
    return {"mean": mean.tolist(), "std": std.tolist()}
