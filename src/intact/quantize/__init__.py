"""Float model in, QDQ model out: plan → observe → resolve → insert. The only quantization path in the program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.config import QuantConfig
from intact.quantize.insert import insert
from intact.quantize.observe import observe
from intact.quantize.plan import plan
from intact.quantize.resolve import resolve
from intact.results import QuantPlan
from intact.targets.spec import Target


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A QDQ model, the plan that it follows, and where the time went."""

    model: ir.Model
    plan: QuantPlan
    warnings: tuple[str, ...]
    calibration_seconds: float
    insertion_seconds: float


def quantize(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    progress: Callable[[], None] = lambda: None,
) -> QuantizedModel:
    """`model` with a grid on every tensor that `target` wants one on, calibrated on `rows`."""
    planned = plan(model, target, config)
    start = time.perf_counter()
    seen = observe(model, planned, rows, progress=progress)
    calibrated = time.perf_counter()
    result = insert(model, planned, resolve(model, planned, seen))
    warnings = [
        f"{name}: {sketch.nonfinite} NaN or infinite values were left out of its range"
        for name, sketch in seen.items()
        if sketch.nonfinite
    ]
    return QuantizedModel(result, planned, tuple(warnings), calibrated - start, time.perf_counter() - calibrated)
