"""Settings as keyword arguments and flags: each name once, with the place of the setting that it sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, TypedDict

import numpy as np

from intact.json_types import Json
from intact.settings.config import BuildConfig, Distribution, Effort, ExportTask, Method, Precision, merge
from intact.settings.places import PLACES, nested

AnyPath = str | PathLike[str]
# Inputs of a model: a file or folder, `module:function`, arrays by input name, an array, or a function that gives them.
Inputs = AnyPath | Mapping[str, np.ndarray] | np.ndarray | Callable[[], object]


class Keywords(TypedDict, total=False):
    """The settings of a build by the names of its flags; what is left out follows the preset of the precision."""

    device: str
    arch: str
    soc: str
    assume_vnni: bool
    assume_ort: str
    precision: Precision
    method: Method
    effort: Effort
    plan: AnyPath
    rescue: bool
    weight_type: str
    activation_type: str
    per_channel: bool
    block_size: int
    accuracy_level: int
    headroom: float
    weight_symmetric: bool
    activation_symmetric: bool
    op_type: Sequence[str]
    exclude_op_type: Sequence[str]
    node: Sequence[str]
    exclude_node: Sequence[str]
    encodings: AnyPath
    calibrate_missing: bool
    data: Inputs
    test_data: Inputs
    samples: int
    distribution: Distribution
    seed: int
    image_size: str | tuple[int, int]
    image_mean: float | Sequence[float]
    image_std: float | Sequence[float]
    image_order: Literal["rgb", "bgr"]
    image_layout: Literal["nchw", "nhwc"]
    tokenizer: str
    dim: Mapping[str, int]
    set: Mapping[str, Json]
    state: Mapping[str, str]
    optimize: bool
    strict: bool
    ep_option: Mapping[str, str]
    toolchain: AnyPath
    io: Literal["float", "quantized"]
    timeout: float
    min_sqnr: float
    min_cosine: float
    labels: AnyPath
    max_accuracy_drop: float
    max_latency_ratio: float
    require_npu: float
    max_cycles: int
    max_memory: str
    task: ExportTask
    sequence_length: int
    dynamic: bool
    trust_remote_code: bool


def configured(config: BuildConfig | None, keywords: Mapping[str, object]) -> BuildConfig:
    """Lay keyword arguments over a configuration; both know only what was set."""
    unknown = [name for name in keywords if name not in PLACES]
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}; settings are {', '.join(sorted(PLACES))}")
    base = {} if config is None else config.model_dump(mode="json", exclude_unset=True)
    flags: dict[str, object] = {}
    for name, value in keywords.items():
        flags = merge(flags, nested(PLACES[name], _plain(value)))
    if "quant" in flags and config is not None and config.compile.quant is not None:
        flags = merge(flags, {"compile": {"quant": flags.pop("quant")}})
    return BuildConfig.from_dict(merge(base, flags))


def _plain(value: object) -> object:
    """A value as settings take it: paths are text."""
    return str(value) if isinstance(value, PathLike) else value
