"""Recurrent layers of few steps as products and elementwise operators, each on a grid of its own.

An NPU that has no integer form of such a layer computes it in half precision, and what a step rounds is fed to the
next: 16 bits hold a sequence better (measured on V73: 51 dB instead of 35 after 48 steps of an LSTM).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query
from intact.records import dataclass
from intact.rules.float.loops import MOST

# The states before or after a step; None stands for zeros.
States = list[ir.Value | None]


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a layer: by gate, its weights for what it reads and for its state, two biases, peepholes."""

    reads: Sequence[np.ndarray]
    recurs: Sequence[np.ndarray]
    read_biases: Sequence[np.ndarray]
    state_biases: Sequence[np.ndarray]
    peepholes: Sequence[np.ndarray | None]

    @property
    def width(self) -> int:
        """The size of the state."""
        return len(self.recurs[0])


class UnrolledLayer(Rule):
    """Writes out the steps of a recurrent layer whose weights are constants."""

    is_rare = True
    op: ClassVar[str]
    # The functions of its gates, as ONNX orders them.
    functions: ClassVar[tuple[str, ...]]
    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def pattern(self, op: Patterns) -> Roots:
        return op.every_output(op.node(self.op, op.each(Var("inputs", optional=True)), _name="node"))

    def check(self, node: ir.Node) -> str | None:
        shape, lengths = query.static_shape(node.inputs[0]), query.constant(query.input_(node, 4))
        if shape is None or shape[0] > MOST:
            return f"its steps are not known, or more than {MOST}"
        if any(query.input_(node, at) is not None and not query.is_constant(node.inputs[at]) for at in (1, 2, 3, 7)):
            return "its weights are computed"
        if query.input_(node, 4) is not None and (lengths is None or np.any(lengths != shape[0])):
            return "its sequences differ in length"
        if "clip" in node.attributes or any(query.int_(node, name, 0) for name in ("input_forget", "layout")):
            return "it clips, couples gates, or has batches first"
        return self._other_functions(node)

    def rewrite(self, op: Builder, node: ir.Node) -> list[ir.Value]:
        directions, backward = list(self._directions(node)), _backward(node)
        found = []
        for at, (direction, back) in enumerate(zip(directions, backward, strict=True)):
            given = (query.input_(node, 5 + index) for index in range(self.states))
            states = [value if value is None else _part(op, value, 0, at, len(directions)) for value in given]
            found.append(self._steps(op, node, direction, states, back=back))
        last = [_joined(op, [states[index] for _, states in found], 0) for index in range(self.states)]
        # An output that nothing reads may be replaced by anything.
        every = last[0] if query.is_unused(node.outputs[0]) else self._every(op, [steps for steps, _ in found])
        return [every, *last][: len(node.outputs)]

    def step(self, op: Builder, node: ir.Node, given: ir.Value, direction: Direction, states: States) -> States:
        """The states after a step; `given` is what all gates get from outside."""
        raise NotImplementedError(type(self).__name__)

    def bias(self, node: ir.Node, direction: Direction) -> np.ndarray:
        """The constant that is added to the gates from outside."""
        pairs = zip(direction.read_biases, direction.state_biases, strict=True)
        return np.concatenate([one + other for one, other in pairs])

    def _steps(
        self, op: Builder, node: ir.Node, direction: Direction, states: States, *, back: bool
    ) -> tuple[list[ir.Value], States]:
        """The first state after every step, in the order of what is read, and all states after the last."""
        product = op.MatMul(node.inputs[0], _turned(op, direction.reads, "weight"))
        projected = op.Add(product, op.constant(self.bias(node, direction), "bias"))
        count = query.known_shape(node.inputs[0])[0]
        steps: list[ir.Value] = []
        for at in reversed(range(count)) if back else range(count):
            states = self.step(op, node, _part(op, projected, 0, at, count), direction, states)
            assert states[0] is not None, "a step leaves a state"
            steps.append(states[0])
        return steps[::-1] if back else steps, states

    @staticmethod
    def _every(op: Builder, directions: Sequence[Sequence[ir.Value]]) -> ir.Value:
        """The states after every step: steps first, then directions."""
        axis = op.constant(np.array([1]), "axis")
        return _joined(op, [_joined(op, [op.Unsqueeze(step, axis) for step in steps], 0) for steps in directions], 1)

    def _directions(self, node: ir.Node) -> Iterator[Direction]:
        reads, recurs = (query.known_constant(node.inputs[at]) for at in (1, 2))
        biases, peepholes = (query.constant(query.input_(node, at)) for at in (3, 7))
        for at in range(len(recurs)):
            both = np.zeros(2 * recurs.shape[1], recurs.dtype) if biases is None else biases[at]
            split = np.split(both, 2 * self.gates)
            seen: Sequence[np.ndarray | None] = (None,) * 3 if peepholes is None else np.split(peepholes[at], 3)
            read, recurring = (np.split(array[at], self.gates) for array in (reads, recurs))
            yield Direction(read, recurring, split[: self.gates], split[self.gates :], seen)

    def _other_functions(self, node: ir.Node) -> str | None:
        given = node.attributes.get("activations")
        found = [] if given is None else [str(name) for name in given.as_strings()]
        wanted = [name.lower() for name in self.functions * len(_backward(node))]
        return None if not found or [name.lower() for name in found] == wanted else f"its functions are {found}"


class UnrollLstm(UnrolledLayer):
    """LSTM(x, h, c) = h' = σ(o)·tanh(c') for each step, c' = σ(f)·c + σ(i)·tanh(g), (i, o, f, g) = W·x + R·h + b."""

    exactness = BOUNDED
    creates = (("", "Sigmoid"), ("", "Tanh"))
    op, gates, states, functions = "LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh")

    def step(self, op: Builder, node: ir.Node, given: ir.Value, direction: Direction, states: States) -> States:
        hidden, cell = states
        total = given if hidden is None else op.Add(given, op.MatMul(hidden, _turned(op, direction.recurs)))
        i, o, f, g = (_part(op, total, 2, at, 4, direction.width) for at in range(4))
        seen_i, seen_o, seen_f = direction.peepholes
        new = op.Mul(op.Sigmoid(_seeing(op, i, cell, seen_i)), op.Tanh(g))
        if cell is not None:
            new = op.Add(op.Mul(op.Sigmoid(_seeing(op, f, cell, seen_f)), cell), new)
        return [op.Mul(op.Sigmoid(_seeing(op, o, new, seen_o)), op.Tanh(new)), new]


class UnrollGru(UnrolledLayer):
    """GRU(x, h) = n + σ(z)·(h − n), which is the next h, for each step; n = tanh of x and what σ(r) leaves of h."""

    exactness = BOUNDED
    creates = (("", "Sigmoid"), ("", "Tanh"))
    op, gates, functions = "GRU", 3, ("Sigmoid", "Tanh")

    def step(self, op: Builder, node: ir.Node, given: ir.Value, direction: Direction, states: States) -> States:
        (hidden,) = states
        z, r, n = (_part(op, given, 2, at, 3, direction.width) for at in range(3))
        if hidden is not None:
            product = op.MatMul(hidden, _turned(op, direction.recurs[:2]))
            z, r = (op.Add(gate, _part(op, product, 2, at, 2, direction.width)) for at, gate in enumerate((z, r)))
        recalled = self._recalled(op, node, hidden, op.Sigmoid(r), direction)
        new = op.Tanh(n if recalled is None else op.Add(n, recalled))
        change = op.Mul(op.Sigmoid(z), new if hidden is None else op.Sub(hidden, new))
        return [op.Sub(new, change) if hidden is None else op.Add(new, change)]

    def bias(self, node: ir.Node, direction: Direction) -> np.ndarray:
        both = super().bias(node, direction)
        # Reset late, the bias of the new state is reset together with it.
        late = query.int_(node, "linear_before_reset", 0)
        return np.concatenate([both[: 2 * direction.width], direction.read_biases[2]]) if late else both

    @staticmethod
    def _recalled(
        op: Builder, node: ir.Node, hidden: ir.Value | None, reset: ir.Value, direction: Direction
    ) -> ir.Value | None:
        """The share of the state that goes into the new one: reset before its product, or after it."""
        weight, bias = direction.recurs[2:], op.constant(direction.state_biases[2], "bias")
        if query.int_(node, "linear_before_reset", 0):
            known = bias if hidden is None else op.Add(op.MatMul(hidden, _turned(op, weight)), bias)
            return op.Mul(reset, known)
        return None if hidden is None else op.MatMul(op.Mul(reset, hidden), _turned(op, weight))


class UnrollRnn(UnrolledLayer):
    """RNN(x, h) = tanh(W·x + R·h + b), which is the next h, for each step."""

    exactness = BOUNDED
    creates = (("", "Tanh"),)
    op, gates, functions = "RNN", 1, ("Tanh",)

    def step(self, op: Builder, node: ir.Node, given: ir.Value, direction: Direction, states: States) -> States:
        (hidden,) = states
        return [op.Tanh(given if hidden is None else op.Add(given, op.MatMul(hidden, _turned(op, direction.recurs))))]


def _backward(node: ir.Node) -> tuple[bool, ...]:
    """For each direction of a layer, True if it begins at the end."""
    return {"reverse": (True,), "bidirectional": (False, True)}.get(query.string(node, "direction", ""), (False,))


def _part(op: Builder, value: ir.Value, axis: int, at: int, count: int, size: int = 1) -> ir.Value:
    """One of `count` equal parts of a value along an axis, each of this size."""
    if count == 1:
        return value
    ends = (op.constant(np.array([end]), "end") for end in (at * size, (at + 1) * size, axis))
    return op.Slice(value, *ends)


def _turned(op: Builder, gates: Sequence[np.ndarray], hint: str = "recurrence") -> ir.Value:
    """The weights of some gates side by side, for a product from the right."""
    return op.constant(np.ascontiguousarray(np.concatenate(gates).T), hint)


def _seeing(op: Builder, gate: ir.Value, cell: ir.Value | None, weight: np.ndarray | None) -> ir.Value:
    """A gate with its peephole."""
    if cell is None or weight is None:
        return gate
    return op.Add(gate, op.Mul(cell, op.constant(weight, "peephole")))


def _joined(op: Builder, parts: Sequence[ir.Value | None], axis: int) -> ir.Value:
    known = [part for part in parts if part is not None]
    return known[0] if len(known) == 1 else op.Concat(*known, axis=axis)
