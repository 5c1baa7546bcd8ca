"""Float model in, QDQ model out: plan → observe → resolve → insert. The only quantization path in the program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from intact.config import QuantConfig
from intact.quantize import blocks, encodings, plan_file
from intact.quantize.improve import improve
from intact.quantize.improve.smooth import smooth
from intact.quantize.insert import insert
from intact.quantize.observe import observe
from intact.quantize.plan import plan
from intact.quantize.rescue import Rescue, rescue
from intact.quantize.resolve import check_constants, resolve
from intact.quantize.sketch import Sketch
from intact.results import QuantPlan, Range
from intact.targets.spec import Target

Rows = Iterable[Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A QDQ model, the plan that it follows, what was decided on the way, and where the time went."""

    model: ir.Model
    plan: QuantPlan
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    calibration_seconds: float
    insertion_seconds: float


def quantize(
    model: ir.Model,
    target: Target,
    config: QuantConfig,
    rows: Rows,
    *,
    ranges: Mapping[str, Range] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> QuantizedModel:
    """`model` with a grid on every tensor that `target` wants one on, calibrated on `rows`.

    `ranges` are ranges of single tensors that are known beforehand; they need not be observed.
    """
    start = time.perf_counter()
    notes: list[str] = []
    types: dict[str, str] = {}
    if config.plan is not None:
        edited = plan_file.edits(Path(config.plan), model, target, config)
        types |= edited.types
        config = config.model_copy(update={"overrides": {**config.overrides, **edited.overrides}})
    # Given encodings are for the tensors of the model as it is: nothing may move between them.
    free = config.encodings is None
    first = plan(model, target, config, types)
    check_constants(model, first)
    if free and config.effort != "fast":
        model, smoothed = smooth(model, first, rows, by_nodes=not target.npu)
        notes += [f"smoothing: outlying channels of {len(smoothed)} tensors moved into weights"] if smoothed else []
    given = encodings.planned(model, target, config, types, ranges)
    eight_bits = free and config.rescue and config.activation_type in ("uint8", "int8")
    seen = observe(
        model, given.plan, rows, watched=_computed(model, given.plan) if eight_bits else (), progress=progress
    )
    rescued = rescue(model, given.plan, seen, target, config.overrides) if eight_bits else None
    if rescued is not None:
        notes.append(str(rescued))
        # What a plan says of a node stands; rescue decides about the others.
        given = encodings.planned(model, target, config, {**rescued.types, **types}, ranges)
    calibrated = time.perf_counter()
    blocked = blocks.split(model, given.plan, target, config)
    notes += blocked.notes
    if free and config.effort != "fast":
        model, resolved = improve(model, blocked.rest, seen, rows)
    else:
        resolved = resolve(model, blocked.rest, seen, given.weights)
    resolved = blocks.resolve(model, blocked, resolved, config.block_size)
    notes += _substitutes(given.plan, config, types, rescued)
    result = insert(model, given.plan, resolved)
    warnings = (*given.warnings, *blocked.warnings, *given.changed(resolved.constants), *_nonfinite(seen))
    return QuantizedModel(
        result, given.plan, tuple(notes), warnings, calibrated - start, time.perf_counter() - calibrated
    )


def _substitutes(plan: QuantPlan, config: QuantConfig, types: Mapping[str, str], rescued: Rescue | None) -> list[str]:
    """A note for nodes that have another type than was asked for, because the target does not take that there."""
    expected = {**(rescued.types if rescued is not None else {}), **types}
    others = [n for n, dtype in plan.nodes.items() if dtype != expected.get(n, config.activation_type)]
    return (
        [f"{len(others)} nodes use another type than {config.activation_type}: {', '.join(others)}"] if others else []
    )


def _computed(model: ir.Model, plan: QuantPlan) -> tuple[str, ...]:
    """The tensors that planned nodes read or write: those that 8 bits may not hold, whatever the plan becomes."""
    nodes = [node for node in model.graph if node.name in plan.nodes]
    values = [value for node in nodes for value in (*node.inputs, *node.outputs)]
    floats = [value for value in values if value is not None and value.dtype == ir.DataType.FLOAT]
    names = dict.fromkeys(value.name or "" for value in floats)
    return tuple(name for name in names if name not in model.graph.initializers)


def _nonfinite(seen: Mapping[str, Sketch]) -> list[str]:
    return [
        f"{name}: {sketch.nonfinite} NaN or infinite values were left out of its range"
        for name, sketch in seen.items()
        if sketch.nonfinite
    ]


__all__ = ["QuantizedModel", "Rescue", "plan", "quantize"]
