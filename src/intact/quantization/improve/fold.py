"""Divides the channels of a tensor without a node for it: the constants that it is computed from are divided instead.

The walk goes back from the tensor to the layers that compute it, through operators that commute with positive scales.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.quantization.improve.parts import part_of
from intact.quantization.improve.scale_labels import UNTOUCHED, fits, of_rank, only, reshaped
from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class Division:
    """A constant input of a node, with labels that broadcast against it."""

    node: ir.Node
    index: int
    labels: np.ndarray


@dataclass(frozen=True, slots=True)
class Fold:
    """The constants to divide, and every tensor that is divided by that, with its labels."""

    divisions: tuple[Division, ...]
    divided: tuple[tuple[ir.Value, np.ndarray], ...]


def find_fold(value: ir.Value, labels: np.ndarray, readers: Collection[ir.Node]) -> Fold | None:
    """Find constants to divide in place of `value`, which nothing but `readers` may read; None if there are none."""
    walk = _Walk()
    return Fold(tuple(walk.divisions), tuple(walk.divided)) if walk.divide(value, labels, readers) else None


class _Walk:
    """Collects what is to be divided, on the way from a tensor back to constants."""

    def __init__(self) -> None:
        self.divisions: list[Division] = []
        self.divided: list[tuple[ir.Value, np.ndarray]] = []

    def divide(self, value: ir.Value, labels: np.ndarray, readers: Collection[ir.Node]) -> bool:
        """True if a computed value can be divided."""
        producer = value.producer()
        if producer is None or producer.domain or not fits(labels, value):
            return False
        if value.is_graph_output() or any(node not in readers for node in value.consumers()):
            return False
        # What a node reads twice would be divided twice.
        if any(value is other for other, _ in self.divided):
            return False
        self.divided.append((value, labels))
        rule = _RULES.get(producer.op_type)
        return rule is not None and rule(self, value, producer, labels)

    def divide_input(self, node: ir.Node, index: int, labels: np.ndarray) -> bool:
        """True if an input of a node can be divided: a constant, or a value computed for this node alone."""
        value = query.input_(node, index)
        if value is None:
            return False
        if query.is_constant(value):
            self.divisions.append(Division(node, index, of_rank(labels, max(query.rank(value) or 0, 1))))
            return True
        return self.divide(value, of_rank(labels, query.rank(value) or 0), (node,))

    def divide_constants(self, node: ir.Node, axes: dict[int, tuple[int, ...]], labels: np.ndarray) -> bool:
        """Divide constant inputs of a node by one scale a channel, shaped for each input."""
        present = {index: shape for index, shape in axes.items() if query.input_(node, index) is not None}
        if not all(query.is_constant(node.inputs[index]) for index in present):
            return False
        self.divisions += [Division(node, index, labels.reshape(shape)) for index, shape in present.items()]
        return True


def _elementwise(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    return walk.divide_input(node, 0, labels)


def _pool(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    return len(node.outputs) == 1 and only(labels, 1) is not None and walk.divide_input(node, 0, labels)


def _sum(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    return all(walk.divide_input(node, index, labels) for index in range(len(node.inputs)))


def _product(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    computed = [index for index, operand in enumerate(node.inputs) if not query.is_constant(operand)]
    return len(computed) == 1 and walk.divide_input(node, computed[0], labels)


def _transpose(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    order = query.ints(node, "perm", tuple(reversed(range(labels.ndim))))
    return walk.divide_input(node, 0, labels.transpose(np.argsort(order)))


def _reshape(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    source = node.inputs[0]
    if source is None or source.shape is None or value.shape is None:
        return False
    before = reshaped(labels, tuple(source.shape), tuple(value.shape))
    return before is not None and walk.divide_input(node, 0, before)


def _concat(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    axis = query.int_(node, "axis", 0) % labels.ndim
    if labels.shape[axis] == 1:
        return all(walk.divide_input(node, index, labels) for index in range(len(node.inputs)))
    shapes = [query.static_shape(source) for source in node.inputs]
    sizes = [shape[axis] for shape in shapes if shape is not None]
    parts = np.split(labels, np.cumsum(sizes)[:-1], axis=axis)
    return len(sizes) == len(shapes) and all(walk.divide_input(node, index, part) for index, part in enumerate(parts))


def _part(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    """A part of a tensor can be divided if whatever else reads the tensor reads other parts of it."""
    part, source = part_of(value), node.inputs[0]
    if part is None or source is None:
        return False
    labels = np.expand_dims(labels, part.axis) if node.op_type == "Gather" else labels
    whole = np.full((*labels.shape[: part.axis], part.length, *labels.shape[part.axis + 1 :]), UNTOUCHED)
    whole[(slice(None),) * part.axis + (slice(part.start, part.stop),)] = labels
    return walk.divide(source, whole, [node, *(reader for reader in source.consumers() if part.is_apart(reader))])


def _matmul(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    weight = node.inputs[1]
    if query.is_constant(weight):
        channels = only(labels, -1)
        return channels is not None and query.rank(weight) == 2 and walk.divide_constants(node, {1: (-1,)}, channels)
    # Row i and column j of the product are those of its first and its second operand.
    if labels.ndim < 2 or query.is_constant(node.inputs[0]):
        return False
    return labels.shape[-2] == 1 and walk.divide_input(node, 1, labels)


def _gemm(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    channels = only(labels, 1)
    weight = (-1, 1) if query.int_(node, "transB", 0) else (-1,)
    return channels is not None and walk.divide_constants(node, {1: weight, 2: (-1,)}, channels)


def _conv(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    channels, rank = only(labels, 1), query.rank(node.inputs[1])
    if channels is None or rank is None:
        return False
    return walk.divide_constants(node, {1: (-1,) + (1,) * (rank - 1), 2: (-1,)}, channels)


def _normalization(walk: _Walk, value: ir.Value, node: ir.Node, labels: np.ndarray) -> bool:
    channels = only(labels, -1)
    if channels is None or query.int_(node, "axis", -1) not in (-1, labels.ndim - 1) or len(node.outputs) > 1:
        return False
    return walk.divide_constants(node, {1: (-1,), 2: (-1,)}, channels)


Rule: TypeAlias = Callable[[_Walk, ir.Value, ir.Node, np.ndarray], bool]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Identity", "Relu", "LeakyRelu", "PRelu", "Div"), _elementwise),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _pool),
    **dict.fromkeys(("Add", "Sub"), _sum),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    **dict.fromkeys(("Gather", "Slice", "Split"), _part),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalization),
    "Mul": _product,
    "Transpose": _transpose,
    "Concat": _concat,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
}
