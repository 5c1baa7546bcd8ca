"""Room for accuracy in a build of 8 bits: what the vendor's own quantizer would spend and our form of a model does not.

A model in friendlier operators takes fewer cycles than the vendor's own build of it in integers. What it saves is spent
where 8 bits cost the most: the noise of every group of nodes is measured, as for mixed precision, the compiler tells
the cycles of each layer, and groups are raised to float, those that save the most noise for their cycles first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from intact.backends import installed
from intact.backends.base import Backend, Device
from intact.errors import TargetError
from intact.events import Log
from intact.matching import rewriter
from intact.model import normalize
from intact.pipeline import execution
from intact.pipeline.preparation import PreparedModel
from intact.quantization import quantizing
from intact.quantization.planning import unquantizable
from intact.records import dataclass
from intact.results import PlacedLayer
from intact.rules.quantized import families
from intact.search.mixed.cost import Prices, Workload, work
from intact.search.mixed.curve import MeasuredNoise, measured_noise, quant_of, settings
from intact.search.mixed.groups import FLOAT, GroupedTensor, Structure
from intact.search.mixed.ladder import Assignment, Ladder
from intact.search.mixed.sensitivity import Noises
from intact.settings.config import BuildConfig
from intact.targets.spec import Costs

# Cycles as a multiple of those of the vendor's own build: so much more nobody notices.
MOST_CYCLES = 1.045
# Noise as a share of the signal, 40 dB below it: cycles beyond that are saved.
ENOUGH = 1e-4
# Mixes that are compiled: each is followed by a cheaper or a dearer one, unless it is as close as this to the limit.
MOST_TRIES, CLOSE = 5, 0.005
# Where all within a limit were tried, it is raised by that share, so many times: expectations are often too high.
MOST_STEPS = 8
# The share of its room that is tried again after a mix that the compiler refuses, or that leaves nothing in integers.
LESS = 0.75


@dataclass(frozen=True, slots=True)
class SpentRoom:
    """The settings to go on with, words about them, and what the manifest keeps."""

    config: BuildConfig
    told: str
    details: Mapping[str, object]


def spend(optimized: PreparedModel, log: Log) -> PreparedModel:
    """The model with settings that leave nodes in float where there is room for it; as it is where there is none."""
    backend = installed.find(optimized.target.backend)
    if not _may_spend(optimized, backend):
        return optimized
    with log.stage("search") as (_, details):
        try:
            found = _Spending(optimized, backend, log).found()
        except TargetError as nothing:  # there is nothing to quantize, which the next stage says
            found = SpentRoom(optimized.config, f"room: none, {nothing.message}", {"reason": nothing.message})
        details.update(found.details)
    log.events.note(found.told)
    return replace(optimized, config=found.config)


def _may_spend(optimized: PreparedModel, backend: Backend) -> bool:
    """True if a compiler tells cycles, float is computed beside integers, and the settings leave the choice."""
    target, quant = optimized.target, optimized.config.quantization
    if quant is None or not quant.has_grids or optimized.source.quantized is not None or optimized.config.states:
        return False
    costs = target.costs
    if costs is None or costs.cycle is None or not (backend.estimates and target.halves):
        return False
    both = costs.levels[0].activation == quant.activation_type and costs.levels[-1].activation == FLOAT
    return both and quant.rescue and quant.effort != "fast" and not unquantizable.is_chosen(quant)


@dataclass(frozen=True, slots=True)
class LayerCycles:
    """The cycles of each group at the first level, and of all that is in no group."""

    groups: tuple[int, ...]
    others: int

    @classmethod
    def of(cls, layers: Sequence[PlacedLayer], found: Structure) -> LayerCycles:
        """Share out the layers of a model that has every group at the first level."""
        home = {name: index for index, group in enumerate(found.groups) for name in group.nodes}
        groups, others = [0] * len(found.groups), 0
        for layer in layers:
            index = next((home[name] for name in layer.nodes if name in home), None)
            if index is None:
                others += layer.cycles or 0
            else:
                groups[index] += layer.cycles or 0
        return cls(tuple(groups), others)

    @property
    def total(self) -> int:
        """All cycles."""
        return sum(self.groups) + self.others


def without_inner(noises: Noises, layers: Sequence[PlacedLayer], found: Structure) -> Noises:
    """The noise of a model whose compiler joins nodes into layers: what stays within one of them is not rounded.

    Rockchip's adds the other operand of a sum to what a convolution has summed up, on no grid (probed: the scale of the
    grid between the two changes nothing in its simulator).
    """
    home = {name: number for number, layer in enumerate(layers) for name in layer.nodes}

    def is_inner(tensor: GroupedTensor) -> bool:
        if tensor.writer is None or not tensor.readers:
            return False
        ends = [found.groups[tensor.writer].nodes[-1], *(found.groups[reader].nodes[0] for reader in tensor.readers)]
        return len({home.get(name, name) for name in ends}) == 1

    inner = {tensor.name for tensor in found.tensors if is_inner(tensor)}
    written = {name: np.zeros_like(noise) if name in inner else noise for name, noise in noises.written.items()}
    return replace(noises, written=written)


def ladder_of(measured: MeasuredNoise, cycles: LayerCycles, costs: Costs, dearer: Sequence[float] = ()) -> Ladder:
    """The steps between assignments at the compiler's prices: cycles of groups, and conversions between them.

    `dearer` are cycles that groups in float were seen to take beyond those that are expected.
    """
    assert costs.cycle is not None, "the price of a cycle is known where a compiler tells them"
    products = tuple(round(count * costs.cycle) for count in cycles.groups)
    values = work(measured.model, measured.found).values
    told = tuple(count * costs.cycle for count in dearer)
    priced = Workload(products, (0,) * len(products), values, included=True, dearer=told)
    return Ladder(Prices(measured.found, priced, costs), measured.noises)


def best_within(ladder: Ladder, cycles: LayerCycles, most: float) -> Assignment:
    """The most accurate assignment found in at most so many cycles."""
    assert ladder.prices.costs.cycle is not None, "the price of a cycle is known where a compiler tells them"
    plain = ladder.uniform(0)
    if plain.noise <= ENOUGH:
        return plain
    return ladder.ascend(plain, (most - cycles.others) * ladder.prices.costs.cycle, ENOUGH)


def expected(chosen: Assignment, ladder: Ladder, cycles: LayerCycles) -> float:
    """The cycles of an assignment, conversions among them."""
    assert ladder.prices.costs.cycle is not None, "the price of a cycle is known where a compiler tells them"
    return cycles.others + chosen.cost / ladder.prices.costs.cycle


def shared_out(excess: float, chosen: Assignment, plain: LayerCycles, found: LayerCycles) -> list[float]:
    """Cycles that nobody expected, by the groups in float, as much as each of them takes more than in integers."""
    more = [
        max(after - before, 0) + 1 if level else 0
        for level, before, after in zip(chosen.levels, plain.groups, found.groups, strict=True)
    ]
    return [excess * count / sum(more) for count in more]


@dataclass(frozen=True, slots=True)
class _Spending:
    """A model on its way, with the compiler that tells what forms of it cost."""

    begun: PreparedModel
    backend: Backend
    log: Log

    def found(self) -> SpentRoom:
        """Measure, ask the compiler, and choose."""
        config, costs = self.begun.config, self.begun.target.costs
        assert costs is not None, "only targets with costs have room"
        layers = self._layers(config)
        if layers is None:
            return SpentRoom(config, "room: none, the compiler tells no cycles of this model in 8 bits", {})
        usual = self.backend.usual_cycles(self.begun.source.model, self._sample, self._device)
        measured = measured_noise(self.begun, self.log.events, named=0)
        measured = replace(measured, noises=without_inner(measured.noises, layers, measured.found))
        cycles = LayerCycles.of(layers, measured.found)
        most = MOST_CYCLES * (cycles.total if usual is None else usual)
        most = most if config.max_cycles is None else min(most, config.max_cycles)
        details = {"vendor_cycles": usual, "plain_cycles": cycles.total, "groups": len(measured.found.groups)}
        chosen, spent = self._chosen(measured, costs, cycles, most)
        count = sum(level > 0 for level in chosen.levels)
        beside = f"{spent} cycles" + ("" if usual is None else f", {usual} of the vendor's own quantizer")
        if not count:
            return SpentRoom(config, f"room: none, {beside}", details)
        told = f"room: {count} of {len(chosen.levels)} groups of nodes, those that 8 bits cost the most, stay in half "
        told += f"precision ({beside}); --no-rescue forbids it"
        details |= {"cycles": spent, "groups_in_float": count}
        return SpentRoom(settings(self.begun, measured.found, chosen), told, details)

    def _chosen(
        self, measured: MeasuredNoise, costs: Costs, cycles: LayerCycles, most: float
    ) -> tuple[Assignment, int]:
        """The most accurate assignment within so many cycles as the compiler makes it, and its cycles.

        Groups that turn out to take more cycles in float than expected are dearer from then on.
        """
        dearer = [0.0] * len(cycles.groups)
        ladder = ladder_of(measured, cycles, costs)
        limit, best = most, (ladder.uniform(0), cycles.total)
        tried = {best[0].levels}
        for _ in range(MOST_TRIES):
            limits = [limit + step * CLOSE * most for step in range(MOST_STEPS)]
            found = (best_within(ladder, cycles, each) for each in limits)
            chosen = next((each for each in found if each.levels not in tried), None)
            if chosen is None:
                break
            tried.add(chosen.levels)
            foreseen = expected(chosen, ladder, cycles)
            layers = self._layers(settings(self.begun, measured.found, chosen))
            if layers is None:
                limit = cycles.total + LESS * (foreseen - cycles.total)
                continue
            spent = sum(layer.cycles or 0 for layer in layers)
            if spent <= most and chosen.noise < best[0].noise:
                best = (chosen, spent)
            if 0 <= most - spent < CLOSE * most or best[0].noise <= ENOUGH:
                break
            if spent <= max(most, foreseen):
                # Conversions, which have a price, are often none in the compiler's cycles.
                limit += most - spent
                continue
            told = shared_out(spent - foreseen, chosen, cycles, LayerCycles.of(layers, measured.found))
            dearer = [a + b for a, b in zip(dearer, told, strict=True)]
            ladder = ladder_of(measured, cycles, costs, dearer)
        return best

    def _layers(self, config: BuildConfig) -> tuple[PlacedLayer, ...] | None:
        """The layers that the compiler makes of the model with these settings; None where it, or the table, refuses."""
        # Types alone decide about cycles: one sample will do.
        quant = quant_of(config).model_copy(update={"effort": "fast", "rescue": False})
        try:
            written = quantizing.quantize(self.begun.model, self.begun.target, quant, [self._sample]).model
        except TargetError:
            return None
        deployed = rewriter.apply(written, families.rules_for(self.begun.target)).model
        normalize.name_nodes(deployed)
        return self.backend.place(deployed, self._device).layers or None

    @property
    def _sample(self) -> Mapping[str, np.ndarray]:
        return next(iter(self.begun.inputs.calibration))

    @property
    def _device(self) -> Device:
        return execution.device_of(self.begun.target, self.begun.config.compile)
