"""Differences followed through a model: a layer that differs is to blame unless later layers undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from intact.search.debug.drifts import Sources, TracedTensor, kept, sources_of, subsets
from intact.search.debug.layers import (
    AGREED_DB,
    PARTED_DB,
    Loss,
    Rows,
    agrees,
    but_for_a_factor,
    decibels,
    difference_of,
)
from intact.search.debug.paired_models import PairedModels
from intact.search.debug.tensor_values import TensorValues
from intact.verification.compare import Difference

# A difference that does not show for this many layers is undone; one that shows after so many others is not meant.
CALM_LAYERS, LONGEST_WAY = 3, 12


class DriftFollower:
    """Traces tensors of the candidate in its order.

    `suspects` are those that differ by themselves, with the cause; `lost` are those whose difference is never undone.
    """

    def __init__(self, models: PairedModels, values: TensorValues) -> None:
        self._models = models
        self._values = values
        self._traced: dict[str, TracedTensor] = {}
        self.suspects: dict[str, Literal["weights", "grid"]] = {}
        self.lost: set[str] = set()

    def trace(self, name: str) -> TracedTensor:
        """Compute a tensor of the candidate from the reference's tensors, and from those that differ so far."""
        expected = self._values.expected(name)
        if self._models.candidate.values[name].is_graph_input():
            return self._keep(TracedTensor(name, None, expected))
        read = {n: self._values.expected(n) for n in self._models.read[name]}
        compute = self._values.layer(name, read)
        fed = compute(read)
        own = difference_of(expected, fed)
        before = [self._traced[n] for n in read if n in self._traced and self._traced[n].drifts]
        if not before:
            return self._keep(self._by_itself(name, own, fed))
        tried = {s: compute(feeds) for s in subsets(before) if (feeds := self._feeds(read, s)) is not None}
        return self._keep(self._followed(TracedTensor(name, own, fed), expected, tried, before, read))

    def follow_grids(self, tensor: TracedTensor, losses: Sequence[Loss]) -> None:
        """Let a grid that loses too much make its tensor differ from there on; what reaches an output is lost."""
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
        if tensor.name in self._models.outputs:
            self.lost |= {source for source, calm in tensor.calm.items() if calm == 0}

    def forget(self, index: int) -> None:
        """Drop the tensors that are not read behind this position."""
        self._traced = {name: t for name, t in self._traced.items() if self._values.is_needed(name, index)}

    def _keep(self, tensor: TracedTensor) -> TracedTensor:
        self._traced[tensor.name] = tensor
        return tensor

    def _agrees(self, name: str, difference: Difference) -> bool:
        return agrees(difference, self._models.limit(name, AGREED_DB))

    def _by_itself(self, name: str, own: Difference, fed: Rows) -> TracedTensor:
        """A tensor that agrees, or that is the first of those that do not."""
        if self._agrees(name, own):
            return TracedTensor(name, own, fed)
        for grid in self._models.grids.get(name, ()):
            # An activation may have been left to the ends of a grid: then only what is on the grid can agree.
            clipped = [grid.rounded(value) for value in fed]
            difference = difference_of(self._values.expected(name), clipped)
            if decibels(difference) > decibels(own) and agrees(difference, self._models.limit(name, PARTED_DB)):
                return TracedTensor(name, difference, clipped)
        self.suspects[name] = "weights"
        return TracedTensor(name, own, fed, {frozenset({name}): fed}, {name: 0})

    def _feeds(self, read: Mapping[str, Rows], sources: Sources) -> dict[str, Rows] | None:
        """The tensors that a layer reads where only these sources differ; None where that was not followed."""
        feeds = dict(read)
        for name in read:
            tensor = self._traced.get(name)
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
        """Tell which of the differences before a tensor show in it, and which do not."""
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
        if hidden or self._agrees(tensor.name, own):
            self._carry(tensor, tried, hidden, before, judged=self._agrees(tensor.name, own))
            return tensor
        if not self._models.computes(tensor.name):
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

    def _hides(self, name: str, sources: Sources, difference: Difference, *, better: bool) -> bool:
        """True if a tensor does not show that these sources differ; what their few bits cost may show."""
        names = (name, *sources)
        agreed, parted = (min(self._models.limit(n, usual) for n in names) for usual in (AGREED_DB, PARTED_DB))
        return agrees(difference, agreed) or (better and agrees(difference, parted))

    def _undone_but_for_a_factor(
        self, tensor: TracedTensor, expected: Rows, tried: Mapping[Sources, Rows]
    ) -> Sources | None:
        """The differences that a layer undoes, had it not another scale: that is no fault of theirs."""
        if self._agrees(tensor.name, but_for_a_factor(expected, tensor.value)):
            return None
        undone = (found for found, rows in tried.items() if self._agrees(tensor.name, but_for_a_factor(expected, rows)))
        return next(undone, None)

    def _past(
        self,
        tensor: TracedTensor,
        expected: Rows,
        before: Sequence[TracedTensor],
        read: Mapping[str, Rows],
        undone: Sources = frozenset(),
    ) -> TracedTensor:
        """Follow earlier differences through the reference's layer where the candidate's differs by itself."""
        pairs = self._models.pairs
        compute, right = self._values.layer_of_reference(tensor.name)
        for source in (one for one in sources_of(before) if one not in undone):
            alone = frozenset({source})
            feeds = self._feeds(read, alone)
            if feeds is None:
                # It was followed with others only: it is lost if that showed.
                self.lost |= {source for found in before if found.calm.get(source) == 0}
                continue
            rows = compute(right | {pairs[n]: rows for n, rows in feeds.items() if pairs[n] in right})
            hides = self._hides(tensor.name, alone, difference_of(expected, rows), better=False)
            if self._pass_on(tensor, source, before, hides=hides):
                tensor.drifts[alone] = rows
        return tensor

    def _pass_on(self, tensor: TracedTensor, source: str, before: Sequence[TracedTensor], *, hides: bool) -> bool:
        """Note that a difference came this far; False where it is undone, or has shown for too long."""
        computes = self._models.computes(tensor.name)
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
