"""A long graph on ONNX Runtime in pieces: the time that a session takes for a node grows with the number of nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.model import message
from intact.runtime import ort_cpu
from intact.runtime.ort_cpu import Session, SessionPort

Feeds = Mapping[str, np.ndarray]

# A session of so many nodes takes 0.06 ms for each, one of 18,000 four times as much. Shorter graphs stay whole.
NODES = 1_000
SHORTEST = 4_000
# Nodes that come late in the order, but read from an early piece alone, join it while it has fewer than this.
MOST_NODES = 4_000
# Each session has threads of its own, which only wait while others compute.
MOST_THREADS = 256
# Tensors that arrays hold as they are, by their names in ONNX Runtime.
_HANDED_OVER = {
    f"tensor({dtype.name.lower()})": dtype
    for dtype in ir.DataType
    if dtype.name in ("FLOAT", "DOUBLE", "FLOAT16", "BOOL") or (dtype.is_integer() and dtype.bitwidth >= 8)
}


def opened(model: ir.Model, outputs: Sequence[str] | None = None, *, threads: int = 0) -> Session:
    """A model on the CPU as it is written, without optimizations: whole, or in pieces with the same numbers."""
    pieces = _cut(model, frozenset(outputs or ())) if is_long(model) else None
    found = None if pieces is None else _sessions(model, pieces, threads)
    return Session(model, outputs=outputs, threads=threads) if found is None else SessionInPieces(model, found, outputs)


class SessionInPieces(Session):
    """The sessions of the pieces of a graph, which run one after the other and hand over what later ones read."""

    def __init__(self, model: ir.Model, pieces: Sequence[Session], outputs: Sequence[str] | None) -> None:
        self._pieces = list(pieces)
        ports = {port.name: port for piece in pieces for port in (*piece.inputs, *piece.outputs)}
        self.inputs = tuple(ports[value.name or ""] for value in model.graph.inputs)
        names = [value.name or "" for value in model.graph.outputs] if outputs is None else outputs
        self.outputs = tuple(ports[name] for name in names)
        self._last_read = {port.name: number for number, piece in enumerate(pieces) for port in piece.inputs}

    def run(self, feeds: Feeds, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        names = [port.name for port in self.outputs] if names is None else names
        asked = {*names, *self._last_read}

        def step(piece: Session, inputs: Feeds) -> dict[str, np.ndarray]:
            wanted = [port.name for port in piece.outputs if port.name in asked]
            return piece.run(inputs, wanted) if wanted else {}

        return self._through(feeds, names, step)

    def run_over(self, feeds: Feeds) -> dict[str, np.ndarray]:
        return self._through(feeds, [port.name for port in self.outputs], Session.run_over)

    def twin(self) -> Session:
        result = copy.copy(self)
        result._pieces = [piece.twin() for piece in self._pieces]
        return result

    def _through(
        self, feeds: Feeds, names: Sequence[str], step: Callable[[Session, Feeds], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Run the pieces in turn; what none reads any more, and nobody asked for, is dropped."""
        values, asked = dict(feeds), frozenset(names)
        for number, piece in enumerate(self._pieces):
            read = [port.name for port in piece.inputs if port.name in values]
            values |= step(piece, {name: values[name] for name in read})
            for name in read:
                if name not in asked and self._last_read[name] == number:
                    del values[name]
        return {name: values[name] for name in names}


@dataclass(slots=True)
class _Piece:
    """Nodes in order, the values that they read and others compute, and those that others read or somebody wants."""

    nodes: list[ir.Node] = field(default_factory=list)
    inputs: dict[ir.Value, None] = field(default_factory=dict)
    outputs: dict[ir.Value, None] = field(default_factory=dict)


def is_long(model: ir.Model) -> bool:
    """True if a model has so many nodes that it is worth cutting, and nothing in it that keeps it whole."""
    if len(model.graph) <= SHORTEST or any(value.is_initializer() for value in model.graph.inputs):
        return False
    return message.is_flat(model)


def _cut(model: ir.Model, wanted: frozenset[str]) -> list[_Piece] | None:
    """The nodes in pieces of which none reads from a later one; None where they do not come in order."""
    pieces, place = [_Piece()], dict[ir.Node, int]()
    for node in model.graph:
        sources = [source for value in node.inputs if value is not None and (source := value.producer()) is not None]
        if not all(source in place for source in sources):
            return None
        place[node] = number = _place(pieces, [place[source] for source in sources])
        pieces[number].nodes.append(node)
        for value in node.inputs:
            source = None if value is None else value.producer()
            if value is None or (source is None and value.is_initializer()):
                continue
            if source is None:
                pieces[number].inputs[value] = None
            elif place[source] != number:
                pieces[number].inputs[value] = None
                pieces[place[source]].outputs[value] = None
        results = [value for value in node.outputs if value.is_graph_output() or value.name in wanted]
        pieces[number].outputs.update(dict.fromkeys(results))
    constants = model.graph.initializers.items()
    wanted_constants = [value for name, value in constants if name in wanted or value.is_graph_output()]
    pieces[-1].outputs.update(dict.fromkeys(wanted_constants))
    return _needed(model, pieces)


def _needed(model: ir.Model, pieces: Sequence[_Piece]) -> list[_Piece]:
    """The pieces that somebody wants something of; the first takes the inputs that none reads."""
    needed = [piece for piece in pieces if piece.outputs]
    read = {value for piece in needed for value in piece.inputs}
    needed[0].inputs.update(dict.fromkeys(value for value in model.graph.inputs if value not in read))
    return needed


def _place(pieces: list[_Piece], sources: Sequence[int]) -> int:
    """The number of the piece for a node that reads from these: the last, unless an earlier one has room."""
    last = len(pieces) - 1
    earliest = max(sources, default=last)
    if earliest < last and len(pieces[earliest].nodes) < MOST_NODES:
        return earliest
    if len(pieces[last].nodes) < NODES:
        return last
    pieces.append(_Piece())
    return last + 1


def _sessions(model: ir.Model, pieces: Sequence[_Piece], threads: int) -> list[Session] | None:
    """A session of each piece; None where one hands over what no array holds, or what has no known type."""
    each = max(1, min(threads or ort_cpu.threads(), MOST_THREADS // len(pieces)))
    prepack = not ort_cpu.is_large(model)
    found: list[Session] = []
    ports: dict[str, SessionPort] = {}
    given = frozenset(model.graph.inputs)
    for piece in pieces:
        handed = [value for value in piece.inputs if value not in given]
        if not all(ports[value.name or ""].type in _HANDED_OVER for value in handed):
            return None
        inputs = {value: None if value in given else _described(ports[value.name or ""]) for value in piece.inputs}
        part = message.part(model, piece.nodes, inputs, list(piece.outputs))
        found.append(Session(part, threads=each, prepack=prepack))
        ports |= {port.name: port for port in found[-1].outputs}
    return found


def _described(port: SessionPort) -> tuple[ir.TypeProtocol, ir.Shape | None]:
    """Type and shape of what a piece hands over; ONNX Runtime says the same of a scalar and of an unknown shape."""
    sizes = [size if isinstance(size, int) else None for size in port.shape]
    return ir.TensorType(_HANDED_OVER[port.type]), ir.Shape(sizes) if sizes else None
