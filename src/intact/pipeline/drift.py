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
# With both, a number that is as wrong as in one step of fifty (2.37 times the average) still keeps LEAST_DB.
STEP_ROOM_DB = 3.5
# Rounding is fitted to the rows that calibration saw: on others bits gain more (7 dB where these show 0.8).
LEAST_GAIN_DB = 0.5
CLOSE_DB = 0.5
STEPS = 48
# Each layer is tried alone: more would take longer than all the rest of a build.
MOST_LAYERS = 24

_ROOM_OF_A_STEP = 10 ** (STEP_ROOM_DB / 10)
_WIDER = {"uint8": "uint16", "int8": "int16"}

Quantize = Callable[[QuantConfig], QuantizedModel]
Noise = Mapping[str, float]
Measure = Callable[[ir.Model], Noise]
# Quantizes with more bits for some layers.
Release = Callable[[Sequence[str]], QuantizedModel]


@dataclass(frozen=True, slots=True)
class Steps:
    """A float model over rows that are steps of a sequence: the states that are fed back, and all outputs."""

    model: ir.Model
    rows: Sequence[data.Feeds]
    states: Mapping[str, str]
    expected: Sequence[Mapping[str, np.ndarray]]

    def noise(self, model: ir.Model) -> Noise:
        """The noise of each output of a model over the sequence, as a share of the output's power."""
        return _shares(self.expected, _outputs(model, self.rows, self.states))

    def noise_of_a_step(self, model: ir.Model) -> Noise:
        """The noise of each output in its average step, with room for a worse one; over the sequence if that is more.

        Loud steps hide what is lost in quiet ones, and any step may be the last that somebody looks at.
        """
        found = _outputs(model, self.rows, self.states)
        single = [_shares([right], [got]) for right, got in zip(self.expected, found, strict=True)]
        return {
            output: max(share, _ROOM_OF_A_STEP * sum(min(step.get(output, 0.0), 1.0) for step in single) / len(single))
            for output, share in _shares(self.expected, found).items()
        }

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

    On the CPU they stay in float; on an NPU they get 16 bits, which hold each step and not just all together.
    """
    noise = steps.noise_of_a_step if npu else steps.noise
    first = quantize(config)
    before = _worst(noise(first.model))
    if before >= LEAST_DB + ROOM_DB:
        return first
    layers, length = steps.layers(first.plan), len(steps.rows)
    if len(layers) > MOST_LAYERS:
        told = f"{length} steps keep {before:.1f} dB, and {len(layers)} layers are too many to try each alone"
        return replace(first, warnings=(*first.warnings, told))

    def release(names: Sequence[str]) -> QuantizedModel:
        return quantize(_with_more_bits(config, [layers[name] for name in names], npu=npu))

    # On the CPU nothing is left that rounds.
    least = noise(release(list(layers)).model) if npu else {}
    result, released = _released(list(layers), release, noise, least)
    # Quiet steps that calibration saw may hide what all together gain.
    gains = [(before, _worst(noise(result.model)))]
    gains += [(_worst(steps.noise(first.model)), _worst(steps.noise(result.model)))] if npu else []
    before, after = max(gains, key=lambda gain: gain[1] - gain[0])
    if after < before + LEAST_GAIN_DB:
        told = f"{length} steps keep {before:.1f} dB, and more bits for layers do not help: other nodes round too much"
        return replace(first, warnings=(*first.warnings, told))
    told = (
        f"rescue: {released} of {len(layers)} layers have {'16 bits' if npu else 'floats'}, because what they round "
        f"adds up: {length} steps keep {after:.1f} dB instead of {before:.1f}; --no-rescue forbids it"
    )
    return replace(result, notes=(*result.notes, told))


def _released(layers: Sequence[str], release: Release, noise: Measure, least: Noise) -> tuple[QuantizedModel, int]:
    """The model with more bits for as few layers as will do, the noisiest first, and their number.

    `least` is the noise with more bits for all. Close to it more layers would be no help, and may do harm: a device may
    compute the wider form less exactly than the CPU does.
    """
    share = {name: _beyond(noise(release([one for one in layers if one != name]).model), least) for name in layers}
    noisiest = sorted(layers, key=lambda name: -max(share[name].values(), default=0.0))
    count, enough = 1, min(LEAST_DB + ROOM_DB, _worst(least) - CLOSE_DB)
    while count < len(layers) and _worst(_sum([least, *(share[name] for name in noisiest[count:])])) < enough:
        count += 1
    while True:
        result = release([name for name in layers if name in noisiest[:count]])
        if count == len(layers) or _worst(noise(result.model)) >= enough:
            return result, count
        count += 1


def _with_more_bits(config: QuantConfig, released: Sequence[WeightPlan], *, npu: bool) -> QuantConfig:
    types: dict[str, str] = {**config.types}
    overrides = dict(config.overrides)
    for weight in released:
        if not npu:
            types[weight.node] = FLOAT
        elif config.activation_type in _WIDER:
            types[weight.node] = _WIDER[config.activation_type]
        else:
            # Of a weight whose channels differ in size, a device loses the smaller ones on a grid for all.
            overrides.setdefault(weight.tensor, TensorOverride(dtype="int16", per_channel=True))
    return config.model_copy(update={"types": types, "overrides": overrides})


def _outputs(model: ir.Model, rows: Sequence[data.Feeds], states: Mapping[str, str]) -> list[Mapping[str, np.ndarray]]:
    runner = Runner("quantized", execution.PLAIN, partial(execution.stream, model))
    return list(chained(runner, states).outputs(rows))


def _shares(expected: Sequence[Mapping[str, np.ndarray]], found: Sequence[Mapping[str, np.ndarray]]) -> Noise:
    """The noise of each output that is of real numbers, as a share of its power; none where nothing is to be seen."""
    rows = compare("quantized", execution.PLAIN, expected, found)
    heard = [row for row in rows if row.equal is None and not row.silent]
    return {row.output: 10 ** (-row.sqnr_db / 10) for row in heard if row.sqnr_db is not None}


def _beyond(noise: Noise, least: Noise) -> Noise:
    return {output: max(share - least.get(output, 0.0), 0.0) for output, share in noise.items()}


def _sum(noises: Sequence[Noise]) -> Noise:
    total: dict[str, float] = {}
    for noise in noises:
        for output, share in noise.items():
            total[output] = total.get(output, 0.0) + share
    return total


def _worst(noise: Noise) -> float:
    """The least SQNR in dB of any output."""
    return min((-decibels(share) for share in noise.values() if share > 0), default=np.inf)
