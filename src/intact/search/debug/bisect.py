"""Finds where two models part ways: each layer of one, fed with what the other computed, and how far off it is alone.

A quantized model goes wrong in two ways. Its weights or its nodes compute something else: then a layer that is fed with
the reference's tensors gives another result. Or a grid does not hold the tensor that is put on it: then rounding
loses more than its type has to. Both are measured layer by layer, so that no error of an earlier layer counts.

A layer may also differ on purpose: a normalization divides by what the next weight multiplies by, a mask is less deep
than it was. Such a difference is undone before it reaches an output, so it is followed until it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from intact.search.debug.drifts import TracedTensor
from intact.search.debug.following import DriftFollower
from intact.search.debug.layers import PARTED_DB, Layer, Loss, decibels, difference_of, loss_of, shown, together
from intact.search.debug.paired_models import PairedModels
from intact.search.debug.tensor_values import TensorValues


def compare_layers(
    models: PairedModels, rows: Sequence[Mapping[str, np.ndarray]], progress: Callable[[], None] = lambda: None
) -> list[Layer]:
    """Every layer of the candidate that has a counterpart, in its order, with the cause where it parts ways."""
    values = TensorValues(models, rows)
    follower = DriftFollower(models, values)
    found: list[Layer] = []
    for index, name in enumerate(models.pairs):
        if models.is_number(name):
            tensor = follower.trace(name)
            losses = _losses(tensor, models, values)
            follower.follow_grids(tensor, losses)
            found += _layer(tensor, losses, models, _accumulated_db(name, models, values))
        values.forget(index)
        follower.forget(index)
        progress()
    return [_judged(layer, models, follower) for layer in found]


def _losses(tensor: TracedTensor, models: PairedModels, values: TensorValues) -> list[Loss]:
    """The cost of each grid of a tensor, the worst first."""
    # A grid is made for what is there, with differences that are meant, and no fault of the layer is the grid's.
    there = [tensor.value, values.expected(tensor.name)]
    there += [tensor.drifts[found] for found in [tensor.sources] if found in tensor.drifts]
    losses = [
        max((loss_of(grid, rows) for rows in there), key=lambda loss: decibels(loss.difference))
        for grid in models.grids.get(tensor.name, ())
    ]
    return sorted(losses, key=lambda loss: decibels(loss.difference))


def _accumulated_db(name: str, models: PairedModels, values: TensorValues) -> float | None:
    """The SQNR of a tensor in the candidate as a whole, behind its first grid."""
    found = values.accumulated(name)
    first = next(iter(models.grids.get(name, ())), None)
    seen = found if first is None else [first.rounded(value) for value in found]
    return shown(difference_of(values.expected(name), seen))


def _layer(tensor: TracedTensor, losses: list[Loss], models: PairedModels, accumulated: float | None) -> list[Layer]:
    """The figures of a layer; none for a graph input without a grid, which adds nothing."""
    if tensor.own is None and not losses:
        return []
    worst = losses[0] if losses else None
    producer = models.whole.values[tensor.name].producer()
    parts = [part for part in (tensor.own, worst.difference if worst else None) if part is not None]
    return [
        Layer(
            node=(producer.name or "") if producer is not None else (worst.grid.quantize if worst else ""),
            op=producer.op_type if producer is not None else "QuantizeLinear",
            tensor=worst.grid.tensor if worst is not None else tensor.name,
            own_db=together(parts),
            computed_db=shown(tensor.own),
            grid_db=shown(worst.difference) if worst is not None else None,
            expected_db=worst.expected_db if worst is not None else None,
            grid_type=worst.grid.dtype if worst is not None else None,
            grid_range=worst.grid.range() if worst is not None else None,
            seen_range=(worst.low, worst.high) if worst is not None else None,
            accumulated_db=accumulated,
        )
    ]


def _judged(layer: Layer, models: PairedModels, follower: DriftFollower) -> Layer:
    """A layer with what became of its difference, once it has been followed to its end."""
    base = models.base(layer.tensor)
    if base not in follower.suspects:
        return layer
    cause = follower.suspects[base]
    if base not in follower.lost:
        return replace(layer, meant=True)
    below = layer.own_db is not None and layer.own_db < models.limit(base, PARTED_DB)
    tensor = base if cause == "weights" else layer.tensor
    return replace(layer, tensor=tensor, cause=cause) if below else layer
