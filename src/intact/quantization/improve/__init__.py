"""Accuracy algorithms, one file each. They change weights and biases, never which tensors are quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers.encoding import Encoding
from intact.quantization import blocks
from intact.quantization.blocks import Blocked
from intact.quantization.calibration.observe import Rows, watch
from intact.quantization.calibration.resolve import Resolved, candidates, resolve
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.improve.coarse_scales import COARSE, least_error_scales
from intact.quantization.improve.effort import Effort
from intact.quantization.improve.rounding import correct_biases, round_weights
from intact.quantization.improve.study import Study, best_candidates, by_tensor, expect, expected_seconds, studies
from intact.results import QuantPlan


def improve(
    model: ir.Model,
    blocked: Blocked,
    seen: Mapping[str, Sketch],
    rows: Rows,
    *,
    effort: Effort | None = None,
    studied: Sequence[Study] | None = None,
) -> tuple[ir.Model, Resolved]:
    """Grids by trial on the layers that read them, weights rounded with feedback, biases corrected.

    `blocked` is the plan, with the weights in blocks apart: they are rounded with feedback too. Layers that have been
    `studied` in another run are not looked at again.
    """
    effort = effort or Effort()
    plan, every, events = blocked.rest, blocked.whole, effort.events
    found = studies(model, every, len(rows)) if studied is None else studied
    layers = sum(len(study.layers) for study in found)
    if layers:
        seconds = effort.run_seconds + expected_seconds(found, len(rows))
        events.note(f"rounding the weights of {layers} layers with feedback: about {max(1, round(seconds))} s")
    tries = candidates(plan, seen)
    expect(found, plan, tries)
    if found and studied is None:
        with events.stage("study the layers", len(rows)) as advance:
            watch(model, by_tensor(found), rows, progress=advance)
    best = best_candidates(plan, found)
    chosen = {grid: tries[grid][index] for grid, index in best.items()}
    careful = {(weight.node, weight.index): None for study in found for weight, _ in study.layers}
    nearest = resolve(model, plan, seen, chosen=chosen, rounded=careful)
    scales = _coarse_scales(model, plan, nearest)
    if scales:
        nearest = resolve(model, plan, seen, scales, chosen, rounded=careful)
    effort.stopwatch.lap("study")
    with events.stage("round the weights", layers) as advance:
        rounded = round_weights(blocks.resolve(model, blocked, nearest), found, advance)
    effort.stopwatch.lap("rounding")
    corrected, changed = correct_biases(model, plan, rounded, found, best)
    known = rounded.constants
    final = resolve(corrected, plan, _seen_again(corrected, seen, changed), scales, chosen, rounded=known)
    in_blocks = {(weight.node, weight.index): known[weight.node, weight.index] for weight in blocked.weights}
    effort.stopwatch.lap("correction")
    return corrected, replace(final, constants={**final.constants, **in_blocks})


def _coarse_scales(model: ir.Model, plan: QuantPlan, resolved: Resolved) -> dict[tuple[str, int], Encoding]:
    """Better scales for weights of few bits, by (node, input)."""
    scales, constants = {}, query.initializers(model)
    for weight in plan.weights:
        tensor = constants[weight.tensor].const_value
        if weight.dtype in COARSE and tensor is not None:
            encoding, _ = resolved.constants[weight.node, weight.index]
            scales[weight.node, weight.index] = least_error_scales(tensor.numpy().astype(np.float64), encoding)
    return scales


def _seen_again(model: ir.Model, seen: Mapping[str, Sketch], changed: tuple[str, ...]) -> dict[str, Sketch]:
    """The sketches, with those of changed constants made anew."""
    result = dict(seen)
    for name in changed:
        tensor = model.graph.initializers[name].const_value
        if name in seen and tensor is not None:
            result[name] = seen[name].fresh()
            result[name].add(tensor.numpy())
    return result
