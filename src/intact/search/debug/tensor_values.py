"""Tensors of two paired models: computed when they are asked for, forgotten after their last use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from intact.model.cutting import Cutter
from intact.pipeline import execution
from intact.search.debug.layers import Rows
from intact.search.debug.paired_models import PairedModels

Compute = Callable[[Mapping[str, Rows]], Rows]


class TensorValues:
    """Values of both models for some rows; no more tensors are kept than are needed."""

    def __init__(self, models: PairedModels, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._models = models
        self._rows = rows
        self._expected: dict[str, Rows] = {}
        self._accumulated: dict[str, Rows] = {}
        # The last position at which a tensor of the candidate, and of the reference, is read.
        self._last_read: dict[str, int] = {}
        self._last_expected: dict[str, int] = {}
        for index, (name, match) in enumerate(models.pairs.items()):
            self._last_read |= dict.fromkeys((name, *models.read[name]), index)
            needed = (match, *self._behind(match), *models.inputs_of(name).values())
            self._last_expected |= dict.fromkeys(needed, index)

    def expected(self, name: str) -> Rows:
        """The values of the counterpart of a tensor, in the reference."""
        return self._of_reference(self._models.pairs[name])

    def accumulated(self, name: str) -> Rows:
        """The values of a tensor in the candidate as a whole; tensors are asked for in the order of the model."""
        whole, pairs = self._models.whole, self._models.pairs
        if whole.values[name].is_graph_input():
            self._accumulated[name] = self.expected(name)
        else:
            feeds = {read: self._accumulated[read] for read in whole.behind([name], pairs)}
            self._accumulated[name] = self._opened(whole, name, pairs, feeds)(feeds)
        return self._accumulated[name]

    def layer(self, name: str, feeds: Mapping[str, Rows]) -> Compute:
        """A function that computes a tensor of the candidate from what its layer reads."""
        return self._opened(self._models.candidate, name, self._models.pairs, feeds)

    def layer_of_reference(self, name: str) -> tuple[Compute, dict[str, Rows]]:
        """A function that computes the counterpart of a tensor from what its layer reads, and the right values."""
        match = self._models.pairs[name]
        right = {read: self._of_reference(read) for read in self._behind(match)}
        return self._opened(self._models.reference, match, self._models.matches, right), right

    def is_needed(self, name: str, index: int) -> bool:
        """True if a tensor of the candidate is read behind this position."""
        return self._last_read[name] > index

    def forget(self, index: int) -> None:
        """Drop what is not read behind this position."""
        self._accumulated = {name: rows for name, rows in self._accumulated.items() if self.is_needed(name, index)}
        last = self._last_expected
        self._expected = {match: rows for match, rows in self._expected.items() if last[match] > index}

    def _behind(self, match: str) -> list[str]:
        return self._models.reference.behind([match], self._models.matches)

    def _of_reference(self, match: str) -> Rows:
        """A tensor of the reference, computed from those before it that have counterparts."""
        if match not in self._expected:
            if self._models.reference.values[match].is_graph_input():
                self._expected[match] = [np.asarray(row[match]) for row in self._rows]
            else:
                feeds = {name: self._of_reference(name) for name in self._behind(match)}
                compute = self._opened(self._models.reference, match, self._models.matches, feeds)
                self._expected[match] = compute(feeds)
        return self._expected[match]

    def _opened(self, cutter: Cutter, name: str, stops: Collection[str], like: Mapping[str, Rows]) -> Compute:
        """A function that computes one tensor of a model for each row from others, by the nodes between."""
        session = execution.session(cutter.piece([name], stops, {key: rows[0] for key, rows in like.items()}))

        def compute(feeds: Mapping[str, Rows]) -> Rows:
            numbers = range(len(self._rows))
            return [session.run({key: rows[row] for key, rows in feeds.items()})[name] for row in numbers]

        return compute
