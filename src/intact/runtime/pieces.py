"""A long graph on ONNX Runtime in pieces: the time that a session takes for a node grows with the number of nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import onnx_ir as ir

from intact.model import message, query
from intact.model.node_encodings import constant_behind
from intact.runtime import ort_cpu
from intact.runtime.ort_cpu import Session, SessionPort

Feeds = Mapping[str, np.ndarray]

# A session of so many nodes takes 0.035 ms for each, one of 1,000 a third more, one of 18,000 seven times as much.
# Shorter graphs stay whole.
NODES = 200
SHORTEST = 4_000
# Nodes that come late in the order, but read from an early piece alone, join it while it has fewer than this.
MOST_NODES = 800
# A weight of so many integers is dequantized here, in less time than a session takes for one node more.
MOST_DEQUANTIZED = 1 << 14
# Rows that go through a piece together; for the next ones all pieces are opened again.
ROWS = 16
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
    found = None if pieces is None else SessionInPieces(model, pieces, outputs, threads)
    return Session(model, outputs=outputs, threads=threads) if found is None or not found.hands_over_arrays() else found


class SessionInPieces(Session):
    """The pieces of a graph, which run one after the other and hand over what later ones read.

    Rows that come together go through a piece together, and no other piece is a session meanwhile. Who runs row by row
    has the sessions of all pieces.
    """

    def __init__(
        self, model: ir.Model, pieces: Sequence[_Piece], outputs: Sequence[str] | None, threads: int = 0
    ) -> None:
        self._model, self._pieces = model, pieces
        self._threads = max(1, min(threads or ort_cpu.threads(), MOST_THREADS // len(pieces)))
        self._prepack = not ort_cpu.is_large(model)
        self._handed: dict[ir.Value, SessionPort] = {}
        self._held: dict[int, Session] = {}
        self._last_read = {value.name or "": number for number, piece in enumerate(pieces) for value in piece.inputs}
        known = {value.name or "": value for piece in pieces for value in (*piece.inputs, *piece.outputs)}
        names = [value.name or "" for value in model.graph.outputs] if outputs is None else outputs
        self.inputs = tuple(map(_port, model.graph.inputs))
        self.outputs = tuple(_port(known[name]) for name in names)

    def run(self, feeds: Feeds, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        return self._through(feeds, names, Session.run)

    def run_over(self, feeds: Feeds) -> dict[str, np.ndarray]:
        return self._through(feeds, None, lambda piece, inputs, _: piece.run_over(inputs))

    def twin(self) -> Session:
        result = copy.copy(self)
        result._held = {number: piece.twin() for number, piece in self._held.items()}
        return result

    def stream(self, rows: Iterable[Feeds], names: Sequence[str] | None = None) -> Iterator[dict[str, np.ndarray]]:
        names = [port.name for port in self.outputs] if names is None else names
        for block in _blocks(rows):
            found: list[dict[str, np.ndarray]] = [{} for _ in block]
            for number, values in self._passed(block, [frozenset(names)] * len(block)):
                found[number] |= values
            yield from ({name: values[name] for name in names} for values in found)

    def parts(self, rows: Iterable[Feeds]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        return self.some_parts(rows, lambda _: None)

    def some_parts(
        self, rows: Iterable[Feeds], names: Callable[[int], Iterable[str] | None]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """`parts` with those outputs that `names` has for the number of a row, or all where it has None."""
        every, done = frozenset(port.name for port in self.outputs), 0
        for block in _blocks(rows):
            some = (names(done + number) for number in range(len(block)))
            for number, values in self._passed(block, [every if one is None else frozenset(one) for one in some]):
                yield done + number, values
            done += len(block)

    def hands_over_arrays(self) -> bool:
        """True if an array holds all that is handed over, as it is; where the model does not tell, its sessions do."""
        handed = [value for piece in self._pieces for value in piece.inputs if value.producer() is not None]
        if all(value.dtype is not None for value in handed):
            return all(value.dtype in _HANDED_OVER.values() for value in handed)
        for number, piece in enumerate(self._pieces):
            if not all(self._handed[value].type in _HANDED_OVER for value in piece.inputs if value in self._handed):
                return False
            self._held[number] = self._opened(piece)
        return True

    def _through(
        self,
        feeds: Feeds,
        names: Sequence[str] | None,
        step: Callable[[Session, Feeds, Sequence[str]], dict[str, np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Run the pieces in turn for one row, and keep their sessions."""
        names = [port.name for port in self.outputs] if names is None else names
        asked, values = frozenset(names), dict(feeds)
        for number, piece in enumerate(self._pieces):
            if number not in self._held:
                self._held[number] = self._opened(piece)
            wanted = self._wanted(number, asked)
            values |= step(self._held[number], self._read(piece, values), wanted) if wanted else {}
            self._drop(number, values, asked)
        return {name: values[name] for name in names}

    def _passed(
        self, rows: Sequence[Feeds], asked: Sequence[frozenset[str]]
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Send rows through one piece after the other; yield what is asked of each row, with its number."""
        values = [dict(row) for row in rows]
        for number, row in enumerate(values):
            yield number, {name: row[name] for name in asked[number] & row.keys()}
        for place, piece in enumerate(self._pieces):
            session = self._held.get(place) or self._opened(piece)
            wanted = {some: self._wanted(place, some) for some in set(asked)}
            for number, row in enumerate(values):
                names = wanted[asked[number]]
                found = session.run(self._read(piece, row), names) if names else {}
                yield number, {name: array for name, array in found.items() if name in asked[number]}
                row |= {name: array for name, array in found.items() if name in self._last_read}
                self._drop(place, row, frozenset())

    def _opened(self, piece: _Piece) -> Session:
        """A session of one piece, of which all that come before were opened once."""
        inputs = {value: self._described(value) for value in piece.inputs}
        known = _dequantized(piece)
        nodes = [node for node in piece.nodes if node.outputs[0] not in known]
        part = message.part(self._model, nodes, inputs, list(piece.outputs), known)
        session = Session(part, threads=self._threads, prepack=self._prepack)
        self._handed |= dict(zip(piece.outputs, session.outputs, strict=True))
        return session

    def _described(self, value: ir.Value) -> tuple[ir.TypeProtocol, ir.Shape | None] | None:
        """Type and shape of what a piece was handed; ONNX Runtime says the same of a scalar and an unknown shape."""
        port = self._handed.get(value)
        if port is None:
            return None
        sizes = [size if isinstance(size, int) else None for size in port.shape]
        return ir.TensorType(_HANDED_OVER[port.type]), ir.Shape(sizes) if sizes else None

    def _wanted(self, place: int, asked: frozenset[str]) -> list[str]:
        names = (value.name or "" for value in self._pieces[place].outputs)
        return [name for name in names if name in asked or name in self._last_read]

    def _read(self, piece: _Piece, values: Feeds) -> Feeds:
        names = (value.name or "" for value in piece.inputs)
        return {name: values[name] for name in names if name in values}

    def _drop(self, place: int, values: dict[str, np.ndarray], asked: frozenset[str]) -> None:
        """Forget what no later piece reads, and nobody asked for."""
        for value in self._pieces[place].inputs:
            name = value.name or ""
            if self._last_read[name] == place and name not in asked:
                values.pop(name, None)


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
    cut = _Cut(wanted)
    if not all(map(cut.add, model.graph)):
        return None
    constants = model.graph.initializers.items()
    wanted_constants = [value for name, value in constants if name in wanted or value.is_graph_output()]
    cut.pieces[-1].outputs.update(dict.fromkeys(wanted_constants))
    return _needed(model, cut.pieces)


class _Cut:
    """The pieces of the nodes so far; what reads constants alone waits for the first that reads from it."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.pieces = [_Piece()]
        self._wanted = wanted
        self._place: dict[ir.Node, int] = {}
        self._waiting: dict[ir.Node, list[ir.Node]] = {}

    def add(self, node: ir.Node) -> bool:
        """Find a place for the next node; False if it reads from a later one."""
        sources, reads_input = [], False
        for value in node.inputs:
            if value is None:
                continue
            source = value.producer()
            if source is not None:
                sources.append(source)
            elif not value.is_initializer():
                reads_input = True
        if not all(source in self._place or source in self._waiting for source in sources):
            return False
        places = [self._place[source] for source in sources if source in self._place]
        is_asked = any(value.is_graph_output() or value.name in self._wanted for value in node.outputs)
        if not places and not reads_input and not is_asked:
            self._waiting[node] = sources
            return True
        self._put(node, sources, _place(self.pieces, places))
        return True

    def _put(self, node: ir.Node, sources: Sequence[ir.Node], number: int) -> None:
        for source in sources:
            if source in self._waiting:
                self._put(source, self._waiting.pop(source), number)
        self._place[node] = number
        piece = self.pieces[number]
        piece.nodes.append(node)
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if value is None or (producer is None and value.is_initializer()):
                continue
            if producer is None:
                piece.inputs[value] = None
            elif self._place[producer] != number:
                piece.inputs[value] = None
                self.pieces[self._place[producer]].outputs[value] = None
        for value in node.outputs:
            if value.is_graph_output() or value.name in self._wanted:
                piece.outputs[value] = None


def _needed(model: ir.Model, pieces: Sequence[_Piece]) -> list[_Piece]:
    """The pieces that somebody wants something of; the first takes the inputs that none reads."""
    needed = [piece for piece in pieces if piece.outputs]
    read = {value for piece in needed for value in piece.inputs}
    needed[0].inputs.update(dict.fromkeys(value for value in model.graph.inputs if value not in read))
    return needed


def _dequantized(piece: _Piece) -> dict[ir.Value, ir.TensorProtocol]:
    """The small weights of a piece as its nodes would dequantize them, which are a third of the nodes of a session."""
    found: dict[ir.Value, ir.TensorProtocol] = {}
    for node in piece.nodes:
        if node.op_type == "DequantizeLinear" and node.outputs[0] not in piece.outputs and _has_small_weight(node):
            array = constant_behind(node.outputs[0])
            if array is not None:
                found[node.outputs[0]] = ir.Tensor(array)
    return found


def _has_small_weight(node: ir.Node) -> bool:
    """True for a DequantizeLinear that makes float32 of few integers, all of them known and of whole bytes."""
    integers, scale = map(query.constant_tensor, node.inputs[:2])
    if integers is None or scale is None or scale.dtype != ir.DataType.FLOAT:
        return False
    return integers.dtype.is_integer() and integers.dtype.bitwidth >= 8 and integers.size <= MOST_DEQUANTIZED


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


def _blocks(rows: Iterable[Feeds]) -> Iterator[list[Feeds]]:
    left = iter(rows)
    while block := list(islice(left, ROWS)):
        yield block


def _port(value: ir.Value) -> SessionPort:
    """An input or output as far as the model describes it, in the words of ONNX Runtime."""
    kind = "" if value.dtype is None else f"tensor({value.dtype.name.lower()})"
    shape = () if value.shape is None else value.shape.dims
    return SessionPort(value.name or "", kind, tuple(size if isinstance(size, int) else size.value for size in shape))
