"""A tensor whose channels may be divided by scales that the layers behind it multiply their weights by.

x · W = (x / s) · (s · W) for any scale s per channel. Scales come from one half of the samples and are judged on the
other half, both ways round: those that fit the samples they come from too closely lose on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.quantization.improve.channel_ranges import HALVES, LEAST, Channels
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.fold import Fold
from intact.quantization.improve.readers import AFTER_FEEDBACK, Reader, channels_read, rounding_noise
from intact.quantization.improve.scale_labels import factors
from intact.records import dataclass
from intact.results import QuantPlan, WeightPlan

Exponents = tuple[float, float]


class Site(Protocol):
    """A place where scales may be moved."""

    def watched(self) -> Iterator[tuple[str, Channels]]:
        """The tensors that are to be observed, and what is to be seen of each."""

    def apply(self, editor: Editor) -> str | None:
        """Move scales if that is worth it; the tensor that was scaled, or None."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A tensor, and all layers with quantized weights that read it as their first input."""

    source: ir.Value
    readers: tuple[tuple[ir.Node, WeightPlan], ...]
    channels: int
    axis: int

    @property
    def nodes(self) -> list[ir.Node]:
        return [node for node, _ in self.readers]

    @property
    def labels(self) -> np.ndarray:
        """One label for each channel."""
        rank = query.rank(self.source) or 0
        return np.arange(self.channels).reshape([self.channels if i == self.axis % rank else 1 for i in range(rank)])


def layers_of(model: ir.Model, plan: QuantPlan) -> list[Layers]:
    """The computed tensors that layers of the main graph with quantized weights read, in its order."""
    nodes = {node.name: node for node in model.graph}
    found: dict[ir.Value, list[tuple[ir.Node, WeightPlan, int]]] = {}
    for weight in (weight for weight in plan.weights if weight.node in nodes):
        node = nodes[weight.node]
        source = node.inputs[0]
        channels = channels_read(node, weight) if source is not None and not query.is_constant(source) else None
        if source is not None and channels is not None:
            found.setdefault(source, []).append((node, weight, channels))
    result = []
    for source, readers in found.items():
        axes = {1 if node.op_type == "Conv" else -1 for node, _, _ in readers}
        numbers = {channels for _, _, channels in readers}
        if len(axes) == len(numbers) == 1 and query.rank(source):
            pairs = tuple((node, weight) for node, weight, _ in readers)
            result.append(Layers(source, pairs, numbers.pop(), axes.pop()))
    return result


@dataclass(slots=True)
class _Rounded:
    """Another tensor on the way to the site that is divided with it, and rounded to a grid of its own."""

    name: str
    seen: Channels
    labels: np.ndarray

    def noise(self, scales: np.ndarray, half: int) -> float:
        return self.seen.noise(factors(self.labels, scales), half)


@dataclass(slots=True)
class _Producer:
    """A layer on the way whose weights share one scale, so that dividing its channels changes how fine that is."""

    plan: WeightPlan
    node: ir.Node
    labels: np.ndarray

    def noise(self, scales: np.ndarray, power: np.ndarray) -> float:
        """The noise that rounding its weights adds to each output, with the inputs' power told from the outputs'."""
        weight = query.constant(self.node.inputs[self.plan.index])
        assert weight is not None, "a fold divides constants"
        energy = max(float(np.square(weight, dtype=np.float64).sum()), 1e-30)
        largest = np.abs(weight / factors(self.labels, scales)).max()
        inputs = weight.size / power.size * float(power.sum()) / energy
        return AFTER_FEEDBACK * float(rounding_noise(self.plan.dtype, largest)) * inputs


@dataclass(slots=True)
class LayerSite:
    """A tensor whose channels may be divided, and the error of the layers behind it for given scales."""

    layers: Layers
    fold: Fold | None
    exponents: Sequence[Exponents]
    seen: Channels
    rounded: list[_Rounded] = field(default_factory=list)
    producers: list[_Producer] = field(default_factory=list)

    @classmethod
    def of(cls, layers: Layers, fold: Fold | None, exponents: Sequence[Exponents], plan: QuantPlan) -> LayerSite:
        """A site of which nothing is seen yet."""
        first = layers.readers[0][1].node
        assert layers.source.name, "every value has a name"
        site = cls(layers, fold, exponents, Channels((layers.axis,), plan.nodes[first]))
        if fold is not None:
            site.rounded = list(_rounded(layers.source.name, fold, plan))
            site.producers = list(_producers(fold, plan))
        return site

    def watched(self) -> Iterator[tuple[str, Channels]]:
        """The tensor itself, and those on other grids that are divided with it."""
        yield self.layers.source.name or "", self.seen
        yield from ((other.name, other.seen) for other in self.rounded)

    def best(self) -> tuple[np.ndarray, float, list[Reader]]:
        """The scales with the least expected error, how many times less that is than without them, and the readers."""
        found = [Reader.of(node, weight) for node, weight in self.layers.readers]
        readers = [reader for reader in found if reader is not None]
        if not all(seen.was_seen for _, seen in self.watched()):
            return np.ones(self.layers.channels), 0.0, readers
        largest = np.maximum(np.max([reader.largest for reader in readers], axis=0), LEAST)
        errors = [self._error(readers, largest, pair) for pair in self.exponents]
        least = int(np.argmin(errors))
        gain = self._error(readers, largest, (0.0, 0.0)) / max(errors[least], 1e-300)
        return _scales(self.seen.reach(), largest, self.exponents[least]), gain, readers

    def _error(self, readers: list[Reader], largest: np.ndarray, exponents: Exponents) -> float:
        """Expected squared error with scales from one half of the samples on the other half, both ways round."""
        total, power = 0.0, self.seen.power
        for half in HALVES:
            scales = _scales(self.seen.reach(1 - half), largest, exponents)
            noise = self.seen.noise(scales, half)
            noise += sum(other.noise(scales, half) for other in self.rounded)
            noise += sum(producer.noise(scales, power) for producer in self.producers)
            total += sum(reader.error(scales, noise, power) for reader in readers)
        return total


def _scales(reach: np.ndarray, largest: np.ndarray, exponents: Exponents) -> np.ndarray:
    """Scales from the reach of channels and their largest weights; the tensor's range stays as large as it was."""
    scales = reach ** exponents[0] / largest ** exponents[1]
    scales = np.clip(scales / np.exp(np.log(scales).mean()), 1e-4, 1e4)
    return np.asarray(scales * (reach / scales).max() / reach.max())


def _rounded(source: str, fold: Fold, plan: QuantPlan) -> Iterator[_Rounded]:
    """The tensors of a fold on grids of their own that hold nothing but what is divided."""
    known = {plan.tensors.get(source)}
    for value, labels in fold.divided:
        grid = plan.tensors.get(value.name or "")
        axes = tuple(axis for axis, size in enumerate(labels.shape) if size > 1)
        if grid is None or grid in known or not axes or (labels < 0).any() or plan.grids[grid].fixed is not None:
            continue
        known.add(grid)
        yield _Rounded(value.name or "", Channels(axes, plan.grids[grid].dtype), labels.reshape(-1))


def _producers(fold: Fold, plan: QuantPlan) -> Iterator[_Producer]:
    per_tensor: Mapping[tuple[str, int], WeightPlan] = {
        (weight.node, weight.index): weight for weight in plan.weights if weight.axis is None
    }
    for division in fold.divisions:
        weight = per_tensor.get((division.node.name or "", division.index))
        if weight is not None and len(query.static_shape(division.node.inputs[division.index]) or ()) > 1:
            yield _Producer(weight, division.node, division.labels)
