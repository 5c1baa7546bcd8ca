"""A model cut into segments that run one after the other, so that a run can start in the middle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.model.cutting import Cutter
from intact.runtime import ort_cpu

Arrays = Mapping[str, np.ndarray]

MOST_SEGMENTS, LEAST_NODES = 12, 16


class Segments:
    """A model in pieces of as many nodes each; `run` remembers what lies between them, for `again` to start there."""

    def __init__(self, model: ir.Model, outputs: Sequence[str]) -> None:
        self._cutter = Cutter(model)
        self._outputs = outputs
        nodes = list(model.graph)
        count = max(1, min(MOST_SEGMENTS, len(nodes) // LEAST_NODES))
        size = -(-len(nodes) // count)
        chunks = [nodes[start : start + size] for start in range(0, len(nodes), size)]
        self._reads = [_read(chunk) for chunk in chunks]
        self._handed_on = [self._results(chunk, index) for index, chunk in enumerate(chunks)]
        self._sessions: list[ort_cpu.Session] = []
        self._before: list[dict[str, np.ndarray]] = []

    def share_behind(self, names: Iterable[str]) -> float:
        """The share of the segments that begins with the first that reads one of these inputs."""
        return 1 - self._first_reader(names) / len(self._reads)

    def run(self, feeds: Arrays) -> list[np.ndarray]:
        """The outputs, from the start."""
        self._before = [dict(feeds)]
        for index in range(len(self._reads)):
            self._before.append(self._step(index, self._before[-1]))
        return [self._before[-1][name] for name in self._outputs]

    def again(self, changed: Arrays) -> list[np.ndarray]:
        """The outputs of the last run with some inputs changed; it starts where the first of them is read."""
        first = self._first_reader(changed)
        state = {**self._before[first], **changed}
        for index in range(first, len(self._reads)):
            state = self._step(index, state)
        return [state[name] for name in self._outputs]

    def _first_reader(self, names: Iterable[str]) -> int:
        values = {self._cutter.values[name] for name in names}
        readers = (index for index, read in enumerate(self._reads) if not values.isdisjoint(read))
        return next(readers, len(self._reads))

    def _step(self, index: int, state: Arrays) -> dict[str, np.ndarray]:
        if not self._handed_on[index]:
            return dict(state)
        if index == len(self._sessions):
            piece = self._cutter.piece(self._handed_on[index], state, like=state)
            self._sessions.append(ort_cpu.Session(piece, optimize=True, threads=ort_cpu.threads()))
        session = self._sessions[index]
        return {**state, **session.run({port.name: state[port.name] for port in session.inputs})}

    def _results(self, chunk: Iterable[ir.Node], index: int) -> list[str]:
        """The tensors of a segment that a later one reads, or that are outputs."""
        later = set().union(*self._reads[index + 1 :])
        values = [value for node in chunk for value in node.outputs]
        return [value.name or "" for value in values if value in later or value.name in self._outputs]


def _read(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """The tensors that nodes read, themselves or in their bodies."""
    found: set[ir.Value] = set()
    for node in nodes:
        found.update(value for value in node.inputs if value is not None)
        for body in query.bodies(node):
            found |= _read(body)
    return found
