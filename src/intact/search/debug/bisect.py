"""Finds where two models part ways: each layer of one, fed with what the other computed, and how far off it is alone.

A quantized model goes wrong in two ways. Its weights or its nodes compute something else: then a layer that is fed with
the reference's tensors gives another result. Or a grid does not hold the tensor that is put on it: then rounding
loses more than its type has to. Both are measured layer by layer, so that no error of an earlier layer counts.

A layer may also differ on purpose: a normalization divides by what the next weight multiplies by, a mask is less deep
than it was. Such a difference is undone before it reaches an output, so it is followed until it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx_ir as ir

from intact.model import activation_grids, query
from intact.model.activation_grids import ActivationGrid
from intact.model.cutting import Cutter
from intact.pipeline import execution
from intact.search.debug.drifts import Sources, TracedTensor, kept, sources_of, subsets
from intact.search.debug.layers import (
    AGREED_DB,
    PARTED_DB,
    Layer,
    Loss,
    Rows,
    agrees,
    but_for_a_factor,
    decibels,
    difference_of,
    loss_of,
    shown,
    together,
)
from intact.search.debug.pairing import pair
from intact.verification.compare import Difference

# A difference that does not show for this many layers is undone; one that shows after so many others is not meant.
CALM_LAYERS, LONGEST_WAY = 3, 12
MOVEMENTS = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
# Weights of b bits give about 6 b - 8 dB; a layer has parted ways 10 dB below that.
DB_PER_BIT, ALLOWANCE_DB = 6.0, 18.0


class Comparison:
    """The candidate held against the reference, one layer after the other; no more tensors are kept than are needed.

    A candidate of a float reference is compared without rounding activations, and its grids by themselves. Where the
    reference has grids too, both are compared as they are.
    """

    def __init__(self, reference: ir.Model, candidate: ir.Model, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        has_grids = bool(activation_grids.grids_of(reference))
        self.reference = Cutter(reference)
        self.whole = Cutter(candidate)
        self.candidate = self.whole if has_grids else Cutter(activation_grids.unrounded(candidate))
        self.pairs = pair(reference, candidate)
        self._matches = set(self.pairs.values())
        self.grids: dict[str, list[ActivationGrid]] = {}
        for grid in () if has_grids else activation_grids.grids_of(candidate):
            self.grids.setdefault(grid.base, []).append(grid)
        self._outputs = {activation_grids.base_of(value).name or "" for value in candidate.graph.outputs}
        self._rows = rows
        self._expected: dict[str, Rows] = {}
        self._accumulated: dict[str, Rows] = {}
        self._tensors: dict[str, TracedTensor] = {}
        self._read = {name: self._inputs_of(name) for name in self.pairs}
        self._last_use = self._last_uses()
        self.suspects: dict[str, Literal["weights", "grid"]] = {}
        self.lost: set[str] = set()

    def layers(self, progress: Callable[[], None] = lambda: None) -> list[Layer]:
        """Every layer of the candidate that has a counterpart, in its order, with the cause where it parts ways."""
        found: list[Layer] = []
        for index, name in enumerate(self.pairs):
            if self._is_number(name):
                tensor = self._tensor(name)
                losses = self._losses(tensor)
                self._follow_grids(tensor, losses)
                self._tensors[name] = tensor
                found += self._layer(tensor, losses, self._accumulate(name))
            self._forget(index)
            progress()
        return [self._judged(layer) for layer in found]

    def inputs_of(self, tensor: str) -> dict[str, str]:
        """What a layer reads, with the counterparts."""
        return {name: self.pairs[name] for name in self._read[tensor]}

    def base(self, tensor: str) -> str:
        """The tensor that was put on a grid, for what the grid made of it."""
        return activation_grids.base_of(self.whole.values[tensor]).name or ""

    def seen(self, tensor: str) -> str:
        """What readers of a tensor see of it: the output of the node that reads its grid, or the tensor itself."""
        writers = [node for node in self.whole.values[tensor].consumers() if node.op_type == "QuantizeLinear"]
        readers = [reader for node in writers for reader in node.outputs[0].consumers()]
        return next((node.outputs[0].name or "" for node in readers if node.op_type == "DequantizeLinear"), tensor)

    def _inputs_of(self, name: str) -> list[str]:
        return self.candidate.behind([name], self.pairs)

    def _last_uses(self) -> dict[str, int]:
        """The last position at which each tensor is read, for both models: beyond it, it is forgotten."""
        last: dict[str, int] = {}
        for index, (name, match) in enumerate(self.pairs.items()):
            behind = self.reference.behind([match], self._matches)
            for used in (name, f"={match}", *self._read[name], *(f"={n}" for n in behind)):
                last[used] = index
            for used in (f"={self.pairs[n]}" for n in self._read[name]):
                last[used] = index
        return last

    def _forget(self, index: int) -> None:
        for store, prefix in ((self._tensors, ""), (self._accumulated, ""), (self._expected, "=")):
            for name in [name for name in store if self._last_use[prefix + name] <= index]:
                del store[name]

    def _is_number(self, name: str) -> bool:
        value = self.candidate.values[name]
        return value.dtype is None or value.dtype != ir.DataType.STRING

    def _expected_rows(self, match: str) -> Rows:
        """A tensor of the reference, computed from those before it that have counterparts."""
        if match not in self._expected:
            behind = self.reference.behind([match], self._matches)
            if self.reference.values[match].is_graph_input():
                self._expected[match] = [np.asarray(row[match]) for row in self._rows]
            else:
                feeds = {name: self._expected_rows(name) for name in behind}
                self._expected[match] = opened(self.reference, match, self._matches, feeds, len(self._rows))(feeds)
        return self._expected[match]

    def _tensor(self, name: str) -> TracedTensor:
        """What the candidate computes there, fed with the reference's tensors, or with those that differ so far."""
        expected = self._expected_rows(self.pairs[name])
        if self.candidate.values[name].is_graph_input():
            return TracedTensor(name, None, expected)
        read = {n: self._expected_rows(self.pairs[n]) for n in self._read[name]}
        compute = self._opened(name, read)
        fed = compute(read)
        own = difference_of(expected, fed)
        before = [self._tensors[n] for n in read if n in self._tensors and self._tensors[n].drifts]
        if not before:
            return self._by_itself(name, own, fed)
        tried = {s: compute(feeds) for s in subsets(before) if (feeds := self._feeds(read, s)) is not None}
        return self._followed(TracedTensor(name, own, fed), expected, tried, before, read)

    def _feeds(self, read: Mapping[str, Rows], sources: Sources) -> dict[str, Rows] | None:
        """What a layer reads where only these sources differ; None where that was not followed."""
        feeds = dict(read)
        for name in read:
            tensor = self._tensors.get(name)
            here = sources & tensor.sources if tensor is not None else frozenset()
            if tensor is not None and here:
                if here not in tensor.drifts:
                    return None
                feeds[name] = tensor.drifts[here]
        return feeds

    def _followed(
        self,
        tensor: TracedTensor,
        expected: Rows,
        tried: Mapping[Sources, Rows],
        before: Sequence[TracedTensor],
        read: Mapping[str, Rows],
    ) -> TracedTensor:
        """A tensor behind others that differ: which differences show here, and which do not."""
        own, fed = tensor.own, tensor.value
        assert own is not None, "only computed tensors are followed"
        hidden: set[Sources] = set()
        for found, rows in tried.items():
            difference = difference_of(expected, rows)
            better = decibels(difference) > decibels(own)
            if self._hides(tensor.name, found, difference, better=better):
                hidden.add(found)
                if better and decibels(difference) > decibels(tensor.own or own):
                    tensor.own, tensor.value = difference, rows
        if not hidden and not agrees(own, self._limit(tensor.name, AGREED_DB)):
            if not self._computes(tensor.name):
                # What only moves values cannot be wrong by itself: what it moves is.
                self.lost |= {source for found in before for source, calm in found.calm.items() if calm == 0}
                return TracedTensor(tensor.name, own, expected)
            undone = self._undone_but_for_a_factor(tensor, expected, tried)
            if undone is not None:
                own, fed = difference_of(expected, tried[undone]), tried[undone]
                return self._past(self._by_itself(tensor.name, own, fed), expected, before, read, undone)
            past = self._past(self._by_itself(tensor.name, own, fed), expected, before, read)
            # What differs here may go with what differs before, as a scaled bias does with a scaled weight.
            for found, rows in tried.items() if past.name in past.sources else ():
                past.drifts.setdefault((found & past.sources) | {past.name}, rows)
            return past
        self._carry(tensor, tried, hidden, before, judged=agrees(own, self._limit(tensor.name, AGREED_DB)))
        return tensor

    def _hides(self, name: str, sources: Sources, difference: Difference, *, better: bool) -> bool:
        """Whether a tensor does not show that these sources differ; what their few bits cost may show."""
        names = (name, *sources)
        agreed, parted = (min(self._limit(n, usual) for n in names) for usual in (AGREED_DB, PARTED_DB))
        return agrees(difference, agreed) or (better and agrees(difference, parted))

    def _undone_but_for_a_factor(
        self, tensor: TracedTensor, expected: Rows, tried: Mapping[Sources, Rows]
    ) -> Sources | None:
        """The differences that a layer undoes, had it not another scale: that is no fault of theirs."""
        limit = self._limit(tensor.name, AGREED_DB)
        if agrees(but_for_a_factor(expected, tensor.value), limit):
            return None
        return next((found for found, rows in tried.items() if agrees(but_for_a_factor(expected, rows), limit)), None)

    def _past(
        self,
        tensor: TracedTensor,
        expected: Rows,
        before: Sequence[TracedTensor],
        read: Mapping[str, Rows],
        undone: Sources = frozenset(),
    ) -> TracedTensor:
        """A tensor that differs by itself: earlier differences are followed through the reference's layer instead."""
        match = self.pairs[tensor.name]
        behind = self.reference.behind([match], self._matches)
        right = {name: self._expected_rows(name) for name in behind}
        compute = opened(self.reference, match, self._matches, right, len(self._rows))
        for source in (one for one in sources_of(before) if one not in undone):
            alone = frozenset({source})
            feeds = self._feeds(read, alone)
            if feeds is None:
                # It was followed with others only: it is lost if that showed.
                self.lost |= {source for found in before if found.calm.get(source) == 0}
                continue
            rows = compute(right | {self.pairs[n]: rows for n, rows in feeds.items() if self.pairs[n] in right})
            hides = self._hides(tensor.name, alone, difference_of(expected, rows), better=False)
            if self._pass_on(tensor, source, before, hides=hides):
                tensor.drifts[alone] = rows
        return tensor

    def _pass_on(self, tensor: TracedTensor, source: str, before: Sequence[TracedTensor], *, hides: bool) -> bool:
        """Whether a difference is still followed: it is not where it is undone, or has shown for too long."""
        computes = self._computes(tensor.name)
        calm = min(found.calm[source] for found in before if source in found.calm) + computes if hides else 0
        way = min(found.way.get(source, 0) for found in before if source in found.calm) + computes
        if calm == 0 and way >= LONGEST_WAY:
            self.lost.add(source)
        elif calm < CALM_LAYERS:
            tensor.calm[source], tensor.way[source] = calm, way
        return source in tensor.calm

    def _carry(
        self,
        tensor: TracedTensor,
        tried: Mapping[Sources, Rows],
        hidden: set[Sources],
        before: Sequence[TracedTensor],
        *,
        judged: bool,
    ) -> None:
        """Follow on what shows, and for a while what does not: next to a large operand, a difference does not show.

        Where the layer is right only with some differences, the others are not `judged` alone: what did not show
        before is taken not to show here.
        """
        unseen = frozenset().union(*hidden)
        for source in sources_of(before):
            quiet = not judged and all(found.calm[source] > 0 for found in before if source in found.calm)
            if self._pass_on(tensor, source, before, hides=source in unseen or quiet) and quiet:
                tensor.drifts[frozenset({source})] = tensor.value
        shown = [frozenset({source}) for source in tensor.calm if source not in unseen or {source} in hidden]
        # Differences that make up for each other stay together until they do.
        joint = {sources for found in before for sources in found.drifts if len(sources) > 1}
        chosen = {*shown, *hidden, *joint, tensor.sources}
        for found, rows in kept(tried, chosen, tensor.sources).items():
            tensor.drifts.setdefault(found, rows)

    def _computes(self, name: str) -> bool:
        """Whether a node computes a tensor rather than moves it: what only moves it hides nothing."""
        producer = self.candidate.values[name].producer()
        return producer is not None and producer.op_type not in MOVEMENTS

    def _by_itself(self, name: str, own: Difference, fed: Rows) -> TracedTensor:
        """A tensor that agrees, or that is the first of those that do not."""
        if agrees(own, self._limit(name, AGREED_DB)):
            return TracedTensor(name, own, fed)
        for grid in self.grids.get(name, ()):
            # An activation may have been left to the ends of a grid: then only what is on the grid can agree.
            clipped = [grid.rounded(value) for value in fed]
            difference = difference_of(self._expected_rows(self.pairs[name]), clipped)
            if decibels(difference) > decibels(own) and agrees(difference, self._limit(name, PARTED_DB)):
                return TracedTensor(name, difference, clipped)
        self.suspects[name] = "weights"
        return TracedTensor(name, own, fed, {frozenset({name}): fed}, {name: 0})

    def _opened(self, name: str, feeds: Mapping[str, Rows]) -> Callable[[Mapping[str, Rows]], Rows]:
        return opened(self.candidate, name, self.pairs, feeds, len(self._rows))

    def _limit(self, name: str, usual: float) -> float:
        """What counts as agreement for a layer with weights of few bits."""
        bits = [_bits(node) for node in self.candidate.nodes_behind([name], self.pairs)]
        gap = AGREED_DB - PARTED_DB if usual == AGREED_DB else 0.0
        return min(usual, DB_PER_BIT * min(bits, default=32) - ALLOWANCE_DB + gap)

    def _losses(self, tensor: TracedTensor) -> list[Loss]:
        """What each grid of a tensor costs, the worst first."""
        # A grid is made for what is there, with differences that are meant, and no fault of the layer is the grid's.
        values = [tensor.value, self._expected_rows(self.pairs[tensor.name])]
        values += [tensor.drifts[found] for found in [tensor.sources] if found in tensor.drifts]
        losses = [
            max((loss_of(grid, rows) for rows in values), key=lambda loss: decibels(loss.difference))
            for grid in self.grids.get(tensor.name, ())
        ]
        return sorted(losses, key=lambda loss: decibels(loss.difference))

    def _follow_grids(self, tensor: TracedTensor, losses: list[Loss]) -> None:
        """A grid that loses too much makes its tensor differ from there on; an output that differs is a difference."""
        if losses and losses[0].too_much:
            # Where the layer differs too, the larger error is to blame.
            if tensor.own is None or decibels(losses[0].difference) < decibels(tensor.own):
                self.suspects[tensor.name] = "grid"
            self.suspects.setdefault(tensor.name, "grid")
            rounded = losses[0].grid.rounded
            alone = frozenset({tensor.name})
            if tensor.sources in tensor.drifts:
                together = tensor.drifts[tensor.sources]
                tensor.drifts[tensor.sources | alone] = [rounded(value) for value in together]
            tensor.drifts[alone] = [rounded(value) for value in tensor.value]
            tensor.calm[tensor.name] = 0
        if tensor.name in self._outputs:
            self.lost |= {source for source, calm in tensor.calm.items() if calm == 0}

    def _layer(self, tensor: TracedTensor, losses: list[Loss], accumulated: float | None) -> list[Layer]:
        """The figures of a layer; none for a graph input without a grid, which adds nothing."""
        if tensor.own is None and not losses:
            return []
        worst = losses[0] if losses else None
        producer = self.whole.values[tensor.name].producer()
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

    def _accumulate(self, name: str) -> float | None:
        """The SQNR of a tensor in the candidate as a whole."""
        expected = self._expected_rows(self.pairs[name])
        if self.whole.values[name].is_graph_input():
            self._accumulated[name] = expected
        else:
            feeds = {n: self._accumulated[n] for n in self.whole.behind([name], self.pairs)}
            self._accumulated[name] = opened(self.whole, name, self.pairs, feeds, len(self._rows))(feeds)
        found = self._accumulated[name]
        first = next(iter(self.grids.get(name, ())), None)
        return shown(difference_of(expected, found if first is None else [first.rounded(value) for value in found]))

    def _judged(self, layer: Layer) -> Layer:
        """A layer with what became of its difference, once it has been followed to its end."""
        base = self.base(layer.tensor)
        if base not in self.suspects:
            return layer
        cause = self.suspects[base]
        if base not in self.lost:
            return replace(layer, meant=True)
        below = layer.own_db is not None and layer.own_db < self._limit(base, PARTED_DB)
        tensor = base if cause == "weights" else layer.tensor
        return replace(layer, tensor=tensor, cause=cause) if below else layer


def opened(
    cutter: Cutter, name: str, stops: Collection[str], like: Mapping[str, Rows], count: int
) -> Callable[[Mapping[str, Rows]], Rows]:
    """A function that computes one tensor of a model for each row from others, by the nodes between."""
    session = execution.session(cutter.piece([name], stops, {key: rows[0] for key, rows in like.items()}))

    def compute(feeds: Mapping[str, Rows]) -> Rows:
        return [session.run({key: rows[index] for key, rows in feeds.items()})[name] for index in range(count)]

    return compute


def _bits(node: ir.Node) -> int:
    """The width of the integers that a node dequantizes constants from; 32 for any other node."""
    value = node.inputs[0] if node.op_type == "DequantizeLinear" else None
    tensor = query.constant_tensor(value)
    return 32 if tensor is None else tensor.dtype.bitwidth
