"""Turns a plan and what was observed into grids and integers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.model import mapped, query
from intact.numbers import encoding as arithmetic
from intact.numbers.encoding import Encoding
from intact.quantization.calibration.ranges import range_of, worth_trying
from intact.quantization.calibration.sketch import Sketch
from intact.records import dataclass
from intact.results import BiasPlan, PlannedGrid, QuantPlan, Range, WeightPlan

# A bias may use this much of int32: the accumulator that it is added to needs the rest.
_BIAS_LIMIT = 2**30


@dataclass(frozen=True, slots=True)
class Resolved:
    """Encodings of tensors by name, and of constants, with their integers, by (node, input)."""

    tensors: Mapping[str, Encoding]
    constants: Mapping[tuple[str, int], tuple[Encoding, np.ndarray]]


def resolve(
    model: ir.Model,
    plan: QuantPlan,
    seen: Mapping[str, Sketch],
    given: Mapping[tuple[str, int], Encoding] = MappingProxyType({}),
    chosen: Mapping[str, Encoding] = MappingProxyType({}),
    *,
    rounded: Mapping[tuple[str, int], tuple[Encoding, np.ndarray] | None] = MappingProxyType({}),
) -> Resolved:
    """Every grid of the plan with its scale and zero point, and the integers of weights and biases.

    `given` are encodings of weights, by (node, input), that are not to be chosen from the values; `chosen` are
    encodings of grids, by name, that are settled already. Weights that are `rounded` with care keep their integers,
    unless a larger bias has raised a scale; those with None there are still to be rounded, and get none.
    """
    values = {name: value.const_value for name, value in query.initializers(model).items()}
    arrays = {name: tensor.numpy() for name, tensor in values.items() if tensor is not None}
    merged = _merged(plan, seen)
    grids = {name: chosen.get(name) or _encoding(grid, merged.get(name)) for name, grid in plan.grids.items()}
    grids |= _of_neighbours(model, plan, grids, {name for name, sketch in merged.items() if _is_zero(sketch)})
    tensors = {tensor: grids[name] for tensor, name in plan.tensors.items()}
    nodes = {node.name: node for node in query.all_nodes(model)}
    biases = {bias.node: bias for bias in plan.biases}
    constants: dict[tuple[str, int], tuple[Encoding, np.ndarray]] = {}
    for weight in plan.weights:
        array = _finite(weight.tensor, arrays[weight.tensor])
        encoding = given.get((weight.node, weight.index)) or _weight_encoding(array, weight)
        bias = biases.get(weight.node)
        if bias is not None:
            scale = tensors[_entry_of_input(plan, nodes[weight.node])].scale
            encoding = _room_for_bias(encoding, _finite(bias.tensor, arrays[bias.tensor]), scale)
        key = weight.node, weight.index
        known = rounded.get(key)
        if known is not None and known[0].same_grid(encoding):
            constants[key] = known
        elif known is None and key in rounded:
            constants[key] = (encoding, np.zeros(0, arithmetic.narrowest(encoding.dtype)))
        else:
            constants[key] = (encoding, mapped.aside(arithmetic.quantize(array, encoding, precision=np.float64)))
    for bias in plan.biases:
        weight_encoding = constants[bias.node, 1][0]
        source = tensors[_entry_of_input(plan, nodes[bias.node])]
        constants[bias.node, bias.index] = _bias(bias, arrays, source, weight_encoding)
    return Resolved(tensors, constants)


def check_constants(model: ir.Model, plan: QuantPlan) -> None:
    """Refuse, before anything is run, a model with NaN or infinite values in a constant that is to be quantized."""
    constants = query.initializers(model)
    for tensor in dict.fromkeys([*(w.tensor for w in plan.weights), *(b.tensor for b in plan.biases)]):
        value = constants[tensor].const_value
        assert value is not None, "planned weights are constants"
        _finite(tensor, value.numpy())


def candidates(plan: QuantPlan, seen: Mapping[str, Sketch]) -> dict[str, tuple[Encoding, ...]]:
    """For each grid the encodings worth trying: one for each range method under `auto`, otherwise just one.

    Grids that tensors decide which are not in `seen` are left out.
    """
    unseen = {plan.tensors[entry] for entry in plan.observed if plan.source(entry) not in seen}
    merged = _merged(replace(plan, observed=tuple(e for e in plan.observed if plan.tensors[e] not in unseen)), seen)
    found = {}
    for name, grid in plan.grids.items():
        if name in unseen:
            continue
        sketch = merged.get(name)
        methods = worth_trying(grid) if sketch is not None else (grid.method,)
        found[name] = tuple(_encoding(replace(grid, method=method), sketch) for method in methods)
    return found


def _entry_of_input(plan: QuantPlan, node: ir.Node) -> str:
    """The entry of the plan that a node reads as its first input."""
    value = node.inputs[0]
    assert value is not None and value.name, "a node with a quantized bias has a first input"
    return plan.entry(value.name, node.name or "", 0)


def _merged(plan: QuantPlan, seen: Mapping[str, Sketch]) -> dict[str, Sketch]:
    """For each grid that is to be chosen, one sketch of all tensors that decide it."""
    members: dict[str, dict[str, Sketch]] = {}
    for entry in plan.observed:
        tensor = plan.source(entry)
        members.setdefault(plan.tensors[entry], {})[tensor] = seen[tensor]
    return {name: functools.reduce(Sketch.merge, sketches.values()) for name, sketches in members.items()}


def _encoding(grid: PlannedGrid, seen: Sketch | None) -> Encoding:
    if grid.fixed is not None:
        scale, zero_point = grid.fixed
        return Encoding(grid.dtype, np.array(scale, np.float32), np.array(zero_point, np.int64))
    chosen = grid.range if grid.range is not None else _range(grid, seen)
    encoding = arithmetic.encode(chosen.low, chosen.high, grid.dtype, symmetric=grid.symmetric)
    wider = grid.least_scale / float(encoding.scale)
    if wider <= 1:
        return encoding
    return arithmetic.encode(wider * chosen.low, wider * chosen.high, grid.dtype, symmetric=grid.symmetric)


def _is_zero(seen: Sketch) -> bool:
    return seen.low == seen.high == 0


def _of_neighbours(
    model: ir.Model, plan: QuantPlan, grids: Mapping[str, Encoding], empty: set[str]
) -> dict[str, Encoding]:
    """Grids for tensors of zeros, which fit any: the finest that a node has beside one.

    A scale of 1 beside one of 1e-4 would make a device lose the finer numbers where both meet.
    """
    found: dict[str, Encoding] = {}
    for node in query.all_nodes(model) if empty else ():
        read = [plan.entry(v.name or "", node.name or "", i) for i, v in enumerate(node.inputs) if v is not None]
        entries = (*read, *(value.name or "" for value in node.outputs))
        names = {plan.tensors[entry] for entry in entries if entry in plan.tensors}
        beside = [grids[name] for name in names - empty]
        for name in names & empty:
            own = grids[name]
            fitting = [found[name]] if name in found else []
            fitting += [_like(own, grid, plan.grids[name]) for grid in beside if grid.dtype == own.dtype]
            if fitting:
                found[name] = min(fitting, key=lambda grid: float(grid.scale))
    return found


def _like(own: Encoding, other: Encoding, planned: PlannedGrid) -> Encoding:
    zero_point = own.zero_point if planned.symmetric else other.zero_point
    return Encoding(own.dtype, np.maximum(other.scale, np.float32(planned.least_scale)), zero_point)


def _range(grid: PlannedGrid, seen: Sketch | None) -> Range:
    assert seen is not None, "a grid without a fixed range was observed"
    chosen = range_of(seen, grid)
    seen.forget_tables()
    return chosen


def _finite(name: str, array: np.ndarray) -> np.ndarray:
    if array.size and not (np.isfinite(array.min()) and np.isfinite(array.max())):
        bad = int((~np.isfinite(array)).sum())
        raise ModelError("M140", f"{name}: {bad} of its values are NaN or infinite", fix="repair the weight")
    return array


def _weight_encoding(array: np.ndarray, weight: WeightPlan) -> Encoding:
    others = tuple(i for i in range(array.ndim) if i != weight.axis) if weight.axis is not None else None
    low, high = array.min(axis=others), array.max(axis=others)
    encoding = arithmetic.encode(low, high, weight.dtype, symmetric=weight.symmetric, axis=weight.axis)
    # A channel of zeros fits any scale; that of its neighbours keeps its bias precise.
    empty = np.asarray((low == 0) & (high == 0))
    if empty.any() and not empty.all():
        scale = np.where(empty, encoding.scale[~empty].max(), encoding.scale).astype(np.float32)
        return Encoding(encoding.dtype, scale, encoding.zero_point, encoding.axis)
    return encoding


def _room_for_bias(encoding: Encoding, bias: np.ndarray, input_scale: np.ndarray) -> Encoding:
    """The encoding with scales raised where the bias would not fit int32 in units of input scale × weight scale."""
    sizes = np.abs(np.atleast_1d(bias).astype(np.float64))
    reach = sizes.max(axis=tuple(range(sizes.ndim - 1))) if encoding.axis is not None else sizes.max()
    needed = reach / (_BIAS_LIMIT * float(input_scale))
    scale = np.maximum(encoding.scale, needed.astype(np.float32))
    return Encoding(encoding.dtype, scale, encoding.zero_point, encoding.axis)


def _bias(
    bias: BiasPlan, arrays: Mapping[str, np.ndarray], source: Encoding, weight: Encoding
) -> tuple[Encoding, np.ndarray]:
    array = np.atleast_1d(_finite(bias.tensor, arrays[bias.tensor]))
    scale = (source.scale * weight.scale).astype(np.float32)
    if scale.ndim:  # one bias per channel, also where the model has one for all or a leading axis of one
        array = np.broadcast_to(array, (*array.shape[:-1], scale.size))
    array = array.reshape(-1) if array.size == array.shape[-1] else array
    encoding = Encoding("int32", scale, np.zeros(scale.shape, np.int64), array.ndim - 1 if scale.ndim else None)
    return encoding, arithmetic.quantize(array, encoding, precision=np.float64)
