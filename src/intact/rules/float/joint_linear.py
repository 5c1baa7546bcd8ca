"""Linear layers whose columns are parts that go separate ways, such as queries, keys and values of attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query
from intact.rules.float.moves import perm_of


class PartJointLinear(Rule):
    """Part(i, Transpose(Reshape(Gemm(x, W, b)))) = Transpose(Reshape(Gemm(x, Wᵢ, bᵢ))), up to the order of sums.

    Wᵢ and bᵢ are the columns of a part. Each part gets a grid of its own, and no part is cut out of the others.
    """

    exactness = BOUNDED
    creates = (("", "Gemm"), ("", "Reshape"), ("", "Transpose"))
    is_rare = True

    def pattern(self, op: Patterns, x: Var, w: Var, shape: Var, b: Var | None = None) -> Roots:
        product = op.Gemm(x, op.constant(w), b, _name="gemm")
        joint = op.Transpose(op.Reshape(product, op.constant(shape)), _name="turn", _shared=True)
        return op.node(("Gather", "Slice"), joint, op.each(Var("bounds")), _name="root")

    def check(self, w: ir.Value, b: ir.Value | None, gemm: ir.Node, turn: ir.Node) -> str | None:
        if b is not None and (query.constant(b) is None or prod(query.known_shape(b)) != _columns(gemm)):
            return f"{query.describe(b)} is not one constant for each column of {query.describe(w)}"
        parts = [Part.of(reader, turn, gemm) for reader in query.consumers(turn.outputs[0])]
        if turn.outputs[0].is_graph_output() or None in parts:
            return "a reader takes something else than one part"
        if len({part.number for part in parts if part is not None}) != len(parts):
            return "two readers take the same part"
        return None

    def rewrite(self, op: Builder, gemm: ir.Node, turn: ir.Node, root: ir.Node) -> ir.Value:
        part = Part.of(root, turn, gemm)
        assert part is not None, "the check has found it"
        columns = slice(part.number * part.width, (part.number + 1) * part.width)
        weight, bias = query.known_constant(gemm.inputs[1]), query.constant(query.input_(gemm, 2))
        own = weight[columns] if query.int_(gemm, "transB", 0) else weight[:, columns]
        added = None if bias is None else op.constant(bias.reshape(-1)[columns], "bias")
        product = op.like(gemm, gemm.inputs[0], op.constant(np.ascontiguousarray(own), "weight"), added)
        moved = op.Transpose(op.Reshape(product, _sizes(op, part.shape)), perm=list(part.perm))
        turned, wanted = tuple(part.shape[axis] for axis in part.perm), query.known_shape(root.outputs[0])
        return moved if turned == wanted else op.Reshape(moved, _sizes(op, wanted))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the columns of a product, so many of `width`; its shape and permutation without the axis of parts."""

    number: int
    width: int
    shape: tuple[int, ...]
    perm: tuple[int, ...]

    @classmethod
    def of(cls, reader: ir.Node, turn: ir.Node, gemm: ir.Node) -> Self | None:
        """The one part that a node takes out of what is reshaped and turned; None where it takes something else."""
        shape, perm = query.static_shape(_joint(turn)), perm_of(turn)
        taken = _taken(reader)
        if shape is None or taken is None or query.static_shape(reader.outputs[0]) is None:
            return None
        (place, number), columns = taken, _columns(gemm)
        axis = perm[place % len(perm)]
        # The parts stand one behind the other in the columns, and nothing of the rows is behind them.
        if prod(shape[axis:]) != columns or not 0 <= number < shape[axis]:
            return None
        others = [old for old in perm if old != axis]
        moved = tuple(old - (old > axis) for old in others)
        return cls(number, columns // shape[axis], shape[:axis] + shape[axis + 1 :], moved)


def _taken(reader: ir.Node) -> tuple[int, int] | None:
    """The axis of the one index that a Gather or a Slice takes, and the index; None where it takes more."""
    if reader.op_type == "Gather":
        index = query.constant(reader.inputs[1])
        return None if index is None or index.size != 1 else (query.int_(reader, "axis", 0), int(index.item()))
    if reader.op_type != "Slice":
        return None
    starts, ends, axes, steps = (query.constant(query.input_(reader, place)) for place in range(1, 5))
    if starts is None or ends is None or axes is None or {starts.size, ends.size, axes.size} != {1}:
        return None
    only = int(ends.item()) == int(starts.item()) + 1 and (steps is None or int(steps.item()) == 1)
    return (int(axes.item()), int(starts.item())) if only else None


def _joint(turn: ir.Node) -> ir.Value:
    value = turn.inputs[0]
    assert value is not None, f"{turn.name} reads nothing"
    return value


def _columns(gemm: ir.Node) -> int:
    return query.known_shape(gemm.inputs[1])[0 if query.int_(gemm, "transB", 0) else 1]


def _sizes(op: Builder, sizes: tuple[int, ...]) -> ir.Value:
    return op.constant(np.array(sizes, np.int64), "shape")
