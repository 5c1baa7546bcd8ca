"""Models with state: calibrated on the states that they come to, and with more bits where rounding adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
import onnx_ir as ir

from intact import data
from intact.model import query
from intact.numbers.decibels import decibels
from intact.pipeline import execution
from intact.quantization.calibration.observe import Rows
from intact.quantization.planning.choose import FLOAT
from intact.quantization.quantizing import QuantizedModel
from intact.results import QuantPlan, WeightPlan
from intact.settings.config import QuantConfig, TensorOverride
from intact.verification.compare import Runner, compare
from intact.verification.sequences import chained

# The SQNR in dB that every output and state keeps over a sequence; rows that calibration saw have to keep more.
LEAST_DB = 30.0
ROOM_DB = 4.0
LEAST_GAIN_DB = 1.0
STEPS = 48
# Each layer is tried alone: more would take longer than all the rest of a build.
MOST_LAYERS = 24

_WIDER = {"uint8": "uint16", "int8": "int16"}

Quantize = Callable[[QuantConfig], QuantizedModel]
Noise = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Steps:
    """A float model over rows that are steps of a sequence: the states that are fed back, and all outputs."""

    model: ir.Model
    rows: Sequence[data.Feeds]
    states: Mapping[str, str]
    expected: Sequence[Mapping[str, np.ndarray]]

    def noise(self, model: ir.Model) -> Noise:
        """The noise of each output of a model over the sequence, as a share of the output's power."""
        found = compare("quantized", execution.PLAIN, self.expected, _outputs(model, self.rows, self.states))
        return {row.output: 10 ** (-row.sqnr_db / 10) for row in found if row.sqnr_db is not None and row.equal is None}

    def layers(self, plan: QuantPlan) -> dict[str, WeightPlan]:
        """The nodes with a quantized matrix or filter, each with one of them."""
        constants = query.initializers(self.model)
        shapes = {name: value.shape for name, value in constants.items()}
        return {weight.node: weight for weight in plan.weights if len(shapes.get(weight.tensor) or ()) > 1}


@dataclass(frozen=True, slots=True)
class FedRows:
    """Rows with the states that a model comes to when it goes through them, in the place of their own."""

    rows: Rows
    model: ir.Model
    states: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[data.Feeds]:
        session = execution.session(self.model)
        carried: dict[str, np.ndarray] = {}
        for row in self.rows:
            fed = {**row, **carried}
            found = session.run(fed)
            carried = {name: found[output] for name, output in self.states.items()}
            yield fed


def with_states(model: ir.Model, rows: Rows, asked: Mapping[str, str] | None) -> tuple[Rows, dict[str, str]]:
    """Rows to calibrate on, and the states of the model.

    Data whose states are the same in every row, all zeros for instance, show nothing of the values that states have:
    there they are fed back.
    """
    alone = Runner("original", execution.PLAIN, partial(execution.stream, model))
    states = execution.states_of(asked, model, rows, alone)
    first = next(iter(rows), {}) if states else {}
    kept = {name: np.array(first[name]) for name in states}
    vary = any(not np.array_equal(row[name], kept[name]) for row in rows for name in states) if states else True
    return rows if vary else FedRows(rows, model, states), states


def steps_of(model: ir.Model, rows: Rows, states: Mapping[str, str]) -> Steps | None:
    """A sequence through the float model; None where the model has no state."""
    if not states:
        return None
    first = [{name: array.copy() for name, array in row.items()} for row in islice(rows, STEPS)]
    return Steps(model, first, states, list(_outputs(model, first, states)))


def steadied(steps: Steps, config: QuantConfig, quantize: Quantize, *, npu: bool) -> QuantizedModel:
    """The model quantized as `config` says, but for the layers that would let a sequence drift away.

    On the CPU they stay in float, on an NPU they get 16 bits.
    """
    first = quantize(config)
    before = _worst(steps.noise(first.model))
    if before >= LEAST_DB + ROOM_DB:
        return first
    layers, length = steps.layers(first.plan), len(steps.rows)
    if len(layers) > MOST_LAYERS:
        told = f"{length} steps keep {before:.1f} dB, and {len(layers)} layers are too many to try each alone"
        return replace(first, warnings=(*first.warnings, told))
    result, released = _released(steps, config, quantize, layers, npu=npu)
    after = _worst(steps.noise(result.model))
    if after < before + LEAST_GAIN_DB:
        told = f"{length} steps keep {before:.1f} dB, and more bits for layers do not help: other nodes round too much"
        return replace(first, warnings=(*first.warnings, told))
    told = (
        f"rescue: {released} of {len(layers)} layers have {'16 bits' if npu else 'floats'}, because what they round "
        f"adds up: {length} steps keep {after:.1f} dB instead of {before:.1f}; --no-rescue forbids it"
    )
    return replace(result, notes=(*result.notes, told))


def _released(
    steps: Steps, config: QuantConfig, quantize: Quantize, layers: Mapping[str, WeightPlan], *, npu: bool
) -> tuple[QuantizedModel, int]:
    """The model with more bits for as few layers as will do, the noisiest first, and their number."""
    alone = {name: steps.noise(quantize(_only(config, name)).model) for name in layers}
    kept = sorted(layers, key=lambda name: max(alone[name].values(), default=0.0))
    wanted = LEAST_DB + ROOM_DB
    while kept and _worst(_sum([alone[name] for name in kept])) < wanted:
        kept.pop()
    while True:
        released = [weight for name, weight in layers.items() if name not in kept]
        result = quantize(_with_more_bits(config, released, npu=npu))
        if not kept or _worst(steps.noise(result.model)) >= wanted:
            return result, len(released)
        kept.pop()


def _only(config: QuantConfig, node: str) -> QuantConfig:
    return config.model_copy(update={"nodes": (node,), "effort": "fast", "rescue": False})


def _with_more_bits(config: QuantConfig, released: Sequence[WeightPlan], *, npu: bool) -> QuantConfig:
    types: dict[str, str] = {**config.types}
    overrides = dict(config.overrides)
    for weight in released:
        if not npu:
            types[weight.node] = FLOAT
        elif config.activation_type in _WIDER:
            types[weight.node] = _WIDER[config.activation_type]
        else:
            overrides.setdefault(weight.tensor, TensorOverride(dtype="int16"))
    return config.model_copy(update={"types": types, "overrides": overrides})


def _outputs(model: ir.Model, rows: Sequence[data.Feeds], states: Mapping[str, str]) -> list[Mapping[str, np.ndarray]]:
    runner = Runner("quantized", execution.PLAIN, partial(execution.stream, model))
    return list(chained(runner, states).outputs(rows))


def _sum(noises: Sequence[Noise]) -> Noise:
    total: dict[str, float] = {}
    for noise in noises:
        for output, share in noise.items():
            total[output] = total.get(output, 0.0) + share
    return total


def _worst(noise: Noise) -> float:
    """The least SQNR in dB of any output."""
    return min((-decibels(share) for share in noise.values() if share > 0), default=np.inf)
