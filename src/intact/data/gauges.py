"""Nodes near an input that show the scale of what reaches them, read by running the model up to there on a few rows.

A BatchNormalization knows the mean and the deviation that it met in training; an activation with bounds (ReLU6,
sigmoids, those of SiLU and hard swish) is of no use where next to everything lies beyond them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from intact.data.dataset import Dataset
from intact.data.symptom import Symptom
from intact.errors import ModelError
from intact.model import query
from intact.model.copying import copied
from intact.records import dataclass
from intact.runtime import ort_cpu

# The factor by which the median channel may differ from running statistics.
NORM_FACTOR = 16.0
# The share of values beyond the bound of an activation that leaves nothing to tell rows apart.
SATURATED_SHARE = 0.9
SIGMOID_BOUND = 6.0
# Rows that run through the first layers.
GAUGED_ROWS = 4

_LINEAR = {"Add", "Sub", "Mul", "Div", "Conv", "Pad", "Identity", "Cast", "Transpose"}
_SIGMOIDS = {"Sigmoid", "Tanh"}


@dataclass(frozen=True, slots=True)
class Gauge:
    """A node near an input that shows the scale of what it gets, and the tensor that it gets."""

    node: ir.Node
    tensor: ir.Value


def gauge_doubts(value: ir.Value, found: Gauge, model: ir.Model, rows: Dataset) -> Iterator[Symptom]:
    """Compare what reaches the first normalization or bounded activation with what those are for."""
    try:
        values = _values(found.tensor, model, rows)
    except ModelError:
        # Whoever runs the whole model will be told, and in which node.
        return
    fault = _statistics_fault if found.node.op_type == "BatchNormalization" else _saturation_fault
    what = fault(found.node, values)
    if what is not None:
        message = (
            f"{rows.source.where}: input {value.name} holds {rows.profile.extents[value.name or '']}, which {what}"
        )
        yield Symptom("saturation", value.name or "", f"{message}; scale the rows as for training", doubtful=True)


def gauge(value: ir.Value) -> Gauge | None:
    """The first of such nodes that an input reaches through nothing but linear ops with constants."""
    waiting, seen = [(value, False)], {value}
    while waiting:
        current, convolved = waiting.pop(0)
        for node, slot in current.uses():
            if slot == 0 and _tells_scale(node, convolved=convolved):
                return Gauge(node, current)
            others = [one for place, one in enumerate(node.inputs) if place != slot and one is not None]
            if node.op_type in _LINEAR and all(map(query.is_constant, others)) and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                waiting.append((node.outputs[0], convolved or node.op_type == "Conv"))
    return None


def _tells_scale(node: ir.Node, *, convolved: bool) -> bool:
    if node.op_type == "BatchNormalization":
        known = all(query.constant(node.inputs[slot]) is not None for slot in (3, 4))
        return known and query.int_(node, "training_mode", 0) == 0
    # Right at the input, a bound may well be what inputs are made of, as 0 and 1 are of binary images.
    return convolved and (node.op_type in _SIGMOIDS or _bounds(node) is not None)


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    """The constant limits of a Clip that has both."""
    low, high = (query.scalar(query.input_(node, slot)) for slot in (1, 2)) if node.op_type == "Clip" else (None, None)
    return None if low is None or high is None else (low, high)


def _statistics_fault(norm: ir.Node, values: np.ndarray) -> str | None:
    """The factor by which the median channel differs from running statistics, in words, if it is large."""
    mean, variance = (np.asarray(query.constant(norm.inputs[slot]), np.float64) for slot in (3, 4))
    axes = (0, *range(2, values.ndim))
    deviation = np.sqrt(variance + query.float_(norm, "epsilon", 1e-5))
    offset, spreads = (values.mean(axis=axes) - mean) / deviation, values.std(axis=axes) / deviation
    distance, spread = np.median(np.hypot(offset, spreads)), np.median(spreads)
    if distance > NORM_FACTOR:
        factor = f"{distance:.0f} times"
    elif 0 < spread < 1 / NORM_FACTOR:
        factor = f"1/{1 / spread:.0f} of"
    else:
        return None
    return f"makes what {norm.name} ({norm.op_type}) gets {factor} what it was in training"


def _saturation_fault(node: ir.Node, values: np.ndarray) -> str | None:
    """The share of values beyond the bound of an activation, in words, if next to none are between."""
    low, high = _bounds(node) or (-SIGMOID_BOUND, SIGMOID_BOUND)
    # A Clip cuts off what is below on purpose, as Relu does; a sigmoid is as flat on either side.
    live, beyond = values[values > low], values[values >= high]
    if node.op_type in _SIGMOIDS:
        live, beyond = values, values[np.abs(values) >= high]
    if live.size == 0 or beyond.size <= SATURATED_SHARE * live.size:
        return None
    return f"saturates {node.name} ({node.op_type}): {beyond.size / live.size:.0%} of what it gets is beyond its bound"


def _values(tensor: ir.Value, model: ir.Model, rows: Dataset) -> np.ndarray:
    """A tensor near the inputs for some rows, one after the other on axis 0; nothing else of the model runs."""
    name = tensor.name or ""
    few = islice(rows, GAUGED_ROWS)
    if tensor.is_graph_input():
        return np.concatenate([row[name] for row in few]).astype(np.float32, copy=False)
    prefix = copied(model)
    wanted = next(one for node in prefix.graph for one in node.outputs if one.name == name)
    prefix.graph.outputs.clear()
    prefix.graph.outputs.append(wanted)
    RemoveUnusedNodesPass()(prefix)
    session = ort_cpu.Session(prefix)
    return np.concatenate([session.run(row)[name] for row in few]).astype(np.float32, copy=False)
