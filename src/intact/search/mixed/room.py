"""Room for accuracy in a build of 8 bits: what the vendor's own quantizer would spend, and our form of a model does not.

A model in friendlier operators takes fewer cycles than the vendor's own build of it in integers. What it saves is spent
where 8 bits cost the most: the noise of every group of nodes is measured, as for mixed precision, the compiler tells
the cycles of each layer, and of the assignments on the curve the most accurate one that fits is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from intact.results import PlacedLayer
from intact.rules.quantized import families
from intact.search.mixed.curve import Curve, curve_of, quant_of, settings
from intact.search.mixed.groups import FLOAT
from intact.search.mixed.ladder import Assignment

# Cycles as a multiple of those of the vendor's own build: what is within its estimate's own error is no slower.
MOST_CYCLES = 1.04
# More than this nobody sees in the outputs: cycles beyond it are saved.
ENOUGH_DB = 40.0
# Mixes that are compiled; each that the compiler makes dearer than expected, or refuses, is followed by a cheaper one.
MOST_TRIES = 3
_REFUSED = 1.1


def spend(optimized: PreparedModel, log: Log) -> PreparedModel:
    """The model with settings that leave nodes in float where there is room for it; as it is where there is none."""
    backend = installed.find(optimized.target.backend)
    if not _may_spend(optimized, backend):
        return optimized
    with log.stage("search") as (_, details):
        try:
            found = _Room(optimized, backend, log).found()
        except TargetError as nothing:  # there is nothing to quantize, which the next stage says
            details["reason"] = nothing.message
            return optimized
        details.update(found.details)
    log.events.note(found.told)
    return replace(optimized, config=settings(optimized, found.curve.found, found.chosen)) if found.chosen else optimized


def _may_spend(optimized: PreparedModel, backend: Backend) -> bool:
    """True if a compiler tells cycles, float is computed beside integers, and the settings leave the choice."""
    target, quant = optimized.target, optimized.config.quantization
    if quant is None or not quant.has_grids or optimized.source.quantized is not None or optimized.config.states:
        return False
    levels = () if target.costs is None else target.costs.levels
    both = bool(levels) and levels[0].activation == quant.activation_type and levels[-1].activation == FLOAT
    free = quant.rescue and quant.effort != "fast" and not unquantizable.is_chosen(quant)
    return both and free and backend.estimates and target.halves


@dataclass(frozen=True, slots=True)
class FoundRoom:
    """The curve, the assignment that was chosen on it, if any, words about it, and what the manifest keeps."""

    curve: Curve
    chosen: Assignment | None
    told: str
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LayerCycles:
    """The cycles of each group at the first level, and of all that is in no group."""

    groups: tuple[int, ...]
    others: int

    @classmethod
    def of(cls, layers: Sequence[PlacedLayer], curve: Curve) -> LayerCycles:
        """Share out the layers of a model that has every group at the first level."""
        home = {name: index for index, group in enumerate(curve.found.groups) for name in group.nodes}
        groups, others = [0] * len(curve.found.groups), 0
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

    def at(self, chosen: Assignment, curve: Curve) -> float:
        """The cycles to expect of an assignment, by what a multiplication costs at each level."""
        base = curve.levels[0].multiply
        factors = (curve.levels[level].multiply / base for level in chosen.levels)
        return self.others + sum(cycles * factor for cycles, factor in zip(self.groups, factors, strict=True))


@dataclass(frozen=True, slots=True)
class _Room:
    """A model on its way, with the compiler that tells what forms of it cost."""

    begun: PreparedModel
    backend: Backend
    log: Log

    @property
    def device(self) -> Device:
        return execution.device_of(self.begun.target, self.begun.config.compile)

    @property
    def _sample(self) -> Mapping[str, np.ndarray]:
        return next(iter(self.begun.inputs.calibration))

    def found(self) -> FoundRoom:
        """Measure, ask the compiler, and choose."""
        curve = curve_of(self.begun, self.log.events, named=0)
        plain = self._layers(None, curve)
        if plain is None:
            return FoundRoom(curve, None, "room: the compiler tells no cycles of the plain form", {})
        cycles = LayerCycles.of(plain, curve)
        usual = self.backend.usual_cycles(self.begun.source.model, self._sample, self.device)
        budget = MOST_CYCLES * (usual or cycles.total)
        if self.begun.config.max_cycles is not None:
            budget = min(budget, self.begun.config.max_cycles)
        chosen, spent = self._chosen(curve, cycles, budget)
        details = {"vendor_cycles": usual, "plain_cycles": cycles.total, "groups": len(curve.found.groups)}
        if chosen is None:
            return FoundRoom(curve, None, f"room: none, {_beside(cycles.total, usual)}", details)
        count = sum(level > 0 for level in chosen.levels)
        told = f"room: {count} of {len(chosen.levels)} groups of nodes, whose 8 bits cost the most accuracy, stay in half precision: "
        told += f"{_beside(spent, usual)}; --no-rescue forbids it"
        return FoundRoom(curve, chosen, told, {**details, "cycles": spent, "groups_in_float": count})

    def _chosen(self, curve: Curve, cycles: LayerCycles, budget: float) -> tuple[Assignment | None, int]:
        """The most accurate assignment whose layers are within the budget as they are compiled, and their cycles."""
        limit = budget
        for _ in range(MOST_TRIES):
            chosen = best_within(curve, cycles, limit)
            if chosen is None:
                break
            layers = self._layers(chosen, curve)
            expected = cycles.at(chosen, curve)
            spent = None if layers is None else sum(layer.cycles or 0 for layer in layers)
            if spent is not None and spent <= budget:
                return chosen, spent
            limit = expected / (_REFUSED if spent is None else max(spent / budget, 1.001))
        return None, cycles.total

    def _layers(self, chosen: Assignment | None, curve: Curve) -> tuple[PlacedLayer, ...] | None:
        """The layers that the compiler makes of the model with an assignment, or plain; None where it refuses it."""
        config = self.begun.config if chosen is None else settings(self.begun, curve.found, chosen)
        quant = quant_of(config).model_copy(update={"effort": "fast", "rescue": False})
        # Types alone decide about cycles: one sample will do.
        written = quantizing.quantize(self.begun.model, self.begun.target, quant, [self._sample]).model
        deployed = rewriter.apply(written, families.rules_for(self.begun.target)).model
        normalize.name_nodes(deployed)
        return self.backend.place(deployed, self.device).layers or None


def best_within(curve: Curve, cycles: LayerCycles, most: float) -> Assignment | None:
    """The assignment with the least noise whose cycles are at most so many; of those that are enough the cheapest.

    None where none is better than the first level throughout.
    """
    mixes = [one for one in curve.front if any(one.levels) and cycles.at(one, curve) <= most]
    enough = [one for one in mixes if one.predicted_db >= ENOUGH_DB]
    if enough:
        return min(enough, key=lambda one: cycles.at(one, curve))
    return min(mixes, key=lambda one: one.noise, default=None)


def _beside(cycles: int, usual: int | None) -> str:
    return f"{cycles} cycles" + ("" if usual is None else f", {usual} of the vendor's own quantizer")
