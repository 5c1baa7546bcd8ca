"""Models with state: calibrated on the states that they come to, and with more bits where rounding adds up."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Literal

import numpy as np
import onnx_ir as ir

from intact import data
from intact.errors import IntactError
from intact.model import query
from intact.numbers.decibels import decibels
from intact.pipeline import execution
from intact.pipeline.fed_rows import LastRows
from intact.quantization.calibration.observe import Rows
from intact.quantization.planning.choose import FLOAT
from intact.quantization.quantizing import NOTHING_TO_QUANTIZE, QuantizedModel
from intact.records import dataclass
from intact.results import QuantPlan, WeightPlan
from intact.settings.config import QuantConfig, TensorOverride
from intact.targets.spec import Target
from intact.verification.compare import Runner, compare
from intact.verification.sequences import chained

# The SQNR in dB that every output and state keeps over a sequence; the rows that are looked at have to keep more.
LEAST_DB = 30.0
ROOM_DB = 4.0
# With both, a number that is as wrong as in one step of fifty (2.37 times the average) still keeps LEAST_DB.
STEP_ROOM_DB = 3.5
# 8-bit weights are fitted to the rows that calibration saw, and keep 10 to 20 dB less of others (three makes of speech,
# 12 to 72 rows of each), as 8-bit grids do; 16 bits keep about as much. Layers get more bits up to this.
FITTED_DB = 10.0
LEAST_GAIN_DB = 0.5
CLOSE_DB = 0.5
STEPS = 48
# How much farther than what was seen 16-bit grids reach, as a share. After twelve rows of speech, 2 keeps 26 dB of
# others, and 4 keeps 43; after seventy rows both keep 49 and more.
HEADROOM = 4.0
# Each layer is tried alone: more would take longer than all the rest of a build.
MOST_LAYERS = 24
# The share of all weights that small layers have together, which stay in float on the CPU before any other is tried.
SMALL = 0.01

_ROOM_OF_A_STEP = 10 ** (STEP_ROOM_DB / 10)
WIDE: Literal["int16"] = "int16"
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

    def is_matrix(self, weight: WeightPlan) -> bool:
        """True for a weight of two dimensions or more."""
        return len(query.initializers(self.model)[weight.tensor].shape or ()) > 1

    def layers(self, plan: QuantPlan) -> dict[str, WeightPlan]:
        """The nodes with a quantized matrix or filter, each with one of them."""
        return {weight.node: weight for weight in plan.weights if self.is_matrix(weight)}

    def in_float(self, plan: QuantPlan, target: Target) -> set[str]:
        """The nodes that are computed in float with weights on grids, and that take 16-bit ones, as an LSTM does."""
        weights = {(weight.node, weight.index) for weight in plan.weights}
        found = {node for node, _ in weights if all((node, index) in weights for index in plan.uses[node])}
        nodes = [node for node in query.all_nodes(self.model) if node.name in found]
        return {node.name or "" for node in nodes if _takes_wide_weights(node, target)}

    def free(self, plan: QuantPlan, target: Target) -> list[str]:
        """The layers that cost nothing on the CPU with more bits, which have them before any other is tried.

        Those that are computed in float have 16-bit weights as fast as 8-bit ones. The smallest have next to none of
        all weights; a head that makes one number of a state is such a one, and rounds what the model is for.
        """
        constants, layers = query.initializers(self.model), self.layers(plan)
        sizes = {name: math.prod(query.known_shape(constants[weight.tensor])) for name, weight in layers.items()}
        ordered = sorted(layers, key=lambda name: sizes[name])
        together = dict(zip(ordered, accumulate(sizes[name] for name in ordered), strict=True))
        in_float, most = self.in_float(plan, target), SMALL * sum(sizes.values())
        return [name for name in layers if together[name] <= most or name in in_float]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A way to quantize for a look, what is looked at, and the dB to keep beyond `LEAST_DB` and `ROOM_DB`."""

    quantize: Quantize
    noise: Measure
    beyond: float = 0.0


def steps_of(model: ir.Model, rows: Rows, states: Mapping[str, str]) -> Steps:
    """A sequence through the float model."""
    first = [{name: array.copy() for name, array in row.items()} for row in islice(rows, STEPS)]
    return Steps(model, first, states, list(_outputs(model, first, states)))


def roomy(config: QuantConfig) -> QuantConfig:
    """Settings whose 16-bit grids have room for more than was seen: what is cut off in one step stays in the state."""
    return config.model_copy(update={"headroom": max(config.headroom, HEADROOM)})


def trials(
    steps: Steps, quantize: Callable[[QuantConfig, Rows], QuantizedModel], rows: Rows, *, npu: bool
) -> list[Rehearsal]:
    """The ways to find out what a sequence keeps that nobody has seen; the next is for where one leaves no layer.

    Of an NPU's 16 bits the grids have room, and weights that are rounded to the nearest fit no row better than another.
    What 8 bits cut off on the CPU shows on rows that calibration has not seen.
    """
    if npu:
        return [Rehearsal(lambda config: quantize(_in_haste(config), rows), steps.noise_of_a_step, FITTED_DB)]
    return [
        Rehearsal(lambda config: quantize(config, LastRows(rows)), steps.noise_of_a_step, FITTED_DB),
        Rehearsal(lambda config: quantize(config, rows), steps.noise),
    ]


def steadied(
    steps: Steps, config: QuantConfig, quantize: Quantize, ways: Sequence[Rehearsal], target: Target
) -> QuantizedModel:
    """The model quantized as `config` says, but for the layers that would let a sequence drift away.

    On the CPU those stay in float, or get weights of 16 bits where they are computed in float anyway; on an NPU they
    get 16 bits.
    """
    for way in ways[:-1]:
        try:
            return _steadied(steps, config, quantize, way, target)
        except IntactError as nothing:
            if nothing.code not in NOTHING_TO_QUANTIZE:
                raise
    return _steadied(steps, config, quantize, ways[-1], target)


def _in_haste(config: QuantConfig) -> QuantConfig:
    return config.model_copy(update={"effort": "fast"})


def _steadied(steps: Steps, config: QuantConfig, quantize: Quantize, way: Rehearsal, target: Target) -> QuantizedModel:
    noise = way.noise
    first = way.quantize(config)
    before = _worst(noise(first.model))
    if before >= LEAST_DB + ROOM_DB:
        return quantize(config)
    layers, length = steps.layers(first.plan), len(steps.rows)
    if len(layers) > MOST_LAYERS:
        told = f"{length} steps keep {before:.1f} dB, and {len(layers)} layers are too many to try each alone"
        return _warned(quantize(config), told)
    free = [] if target.npu else steps.free(first.plan, target)

    def settings(names: Sequence[str]) -> QuantConfig:
        return _with_more_bits(config, steps, first.plan, {*free, *names}, target)

    def release(names: Sequence[str]) -> QuantizedModel:
        return way.quantize(settings(names))

    # On the CPU nothing is left that rounds.
    least = noise(release(list(layers)).model) if target.npu else {}
    others = [name for name in layers if name not in free]
    result, names = _released(others, release, way, least)
    # Quiet steps may hide what all together gain.
    gains = [(before, _worst(noise(result.model)))]
    gains += [(_worst(steps.noise(first.model)), _worst(steps.noise(result.model)))] if target.npu else []
    before, after = max(gains, key=lambda gain: gain[1] - gain[0])
    if after < before + LEAST_GAIN_DB:
        told = f"{length} steps keep {before:.1f} dB, and more bits for layers do not help: other nodes round too much"
        return _warned(quantize(config), told)
    more = "16 bits" if target.npu else "floats, or 16-bit weights between floats"
    told = (
        f"rescue: {len(free) + len(names)} of {len(layers)} layers have {more}, because what they round adds up: "
        f"{length} steps keep {after:.1f} dB instead of {before:.1f}; "
        "--no-rescue forbids it"
    )
    final = quantize(settings(names))
    return replace(final, notes=(*final.notes, told))


def _takes_wide_weights(node: ir.Node, target: Target) -> bool:
    spec = target.op(node.domain, node.op_type)
    signatures = target.signatures(spec) if spec is not None else ()
    return any(slot.constant and WIDE in slot.types for sig in signatures for slot in sig.inputs)


def _warned(result: QuantizedModel, told: str) -> QuantizedModel:
    return replace(result, warnings=(*result.warnings, told))


def _released(
    layers: Sequence[str], release: Release, way: Rehearsal, least: Noise
) -> tuple[QuantizedModel, list[str]]:
    """The model with more bits for as few layers as will do, the noisiest first, and those layers.

    `least` is the noise with more bits for all. Close to it more layers would be no help, and may do harm: a device may
    compute the wider form less exactly than the CPU does.
    """
    noise = way.noise
    share = {name: _beyond(noise(release([one for one in layers if one != name]).model), least) for name in layers}
    noisiest = sorted(layers, key=lambda name: -max(share[name].values(), default=0.0))
    enough = LEAST_DB + ROOM_DB + way.beyond
    enough = min(enough, _worst(least) - CLOSE_DB) if least else enough
    count = 1 if least else 0
    while count < len(layers) and _worst(_sum([least, *(share[name] for name in noisiest[count:])])) < enough:
        count += 1
    while True:
        released = [name for name in layers if name in noisiest[:count]]
        result = release(released)
        if count >= len(layers) or _worst(noise(result.model)) >= enough:
            return result, released
        count += 1


def _with_more_bits(
    config: QuantConfig, steps: Steps, plan: QuantPlan, released: Collection[str], target: Target
) -> QuantConfig:
    types: dict[str, str] = {**config.types}
    overrides = dict(config.overrides)
    wide = set(released) if target.npu else steps.in_float(plan, target) & set(released)
    for weight in (weight for weight in plan.weights if weight.node in released):
        if weight.node not in wide:
            types[weight.node] = FLOAT
        elif target.npu and config.activation_type in _WIDER:
            types[weight.node] = _WIDER[config.activation_type]
        elif steps.is_matrix(weight):
            # Of a weight whose channels differ in size, a device loses the smaller ones on a grid for all.
            overrides.setdefault(weight.tensor, TensorOverride(dtype=WIDE, per_channel=True))
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
