"""Linear layers on vectors in rows, for targets that multiply matrices in integers and nothing of more dimensions."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, EXACT, Rule
from intact.model import query

_MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten")


class FlatLinearRule(Rule):
    """A linear layer on vectors in more than two dimensions, with a bias or without."""

    exactness = BOUNDED
    creates = (("", "Gemm"), ("", "Reshape"))
    is_rare = True


class FlattenBiasedLinear(FlatLinearRule):
    """x·W + b = Reshape(Gemm(Reshape(x), W, b)): the rows of x are multiplied one by one, up to the order of sums."""

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var) -> Roots:
        return op.Add(op.MatMul(x, op.constant(w)), op.constant(b))

    def check(self, x: ir.Value, w: ir.Value, b: ir.Value) -> str | None:
        if _is_bias(b, x, w):
            return _shape_doubt(x, w)
        return f"{query.describe(b)} is not one number for each column of {query.describe(w)}"

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value) -> ir.Value:
        return _flat(op, x, w, op.constant(query.known_constant(b).reshape(-1), "bias"))


class FlattenLinear(FlatLinearRule):
    """x·W = Reshape(Gemm(Reshape(x), W)): the rows of x are multiplied one by one, up to the order of sums."""

    def pattern(self, op: Patterns, x: Var, w: Var) -> Roots:
        return op.MatMul(x, op.constant(w), _name="product")

    def check(self, x: ir.Value, w: ir.Value, product: ir.Node) -> str | None:
        behind = query.only_consumer(product.outputs[0])
        if behind is not None and behind.op_type == "Add":
            added = [value for value in behind.inputs if value is not product.outputs[0]]
            if any(query.is_constant(value) and _is_bias(value, x, w) for value in added):
                return "its bias is added behind it"
        return _shape_doubt(x, w)

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, product: ir.Node) -> ir.Value:
        return _flat(op, x, w, None)


class NegateProduct(Rule):
    """Gemm(a·b, W) = Gemm(−(a·b), −W), so that something stands between attention in float and a layer in integers.

    Rockchip's compiler dies where the integers of a layer are made of the result of attention itself
    (rknn-toolkit2 2.5.0). It gets there in fewer steps if the product is negated before anything moves it.
    """

    exactness = EXACT
    creates = (("", "Neg"),)
    is_rare = True

    def pattern(self, op: Patterns, x: Var, w: Var, b: Var | None = None) -> Roots:
        return op.Gemm(x, op.constant(w), b, _name="gemm")

    def check(self, x: ir.Value) -> str | None:
        source = _behind(_moves_to(x), x).producer()
        if source is None or source.op_type != "MatMul" or any(map(query.is_constant, source.inputs)):
            return "it does not read a product of two values that are computed"
        return None

    def rewrite(self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value | None, gemm: ir.Node) -> ir.Value:
        moves = _moves_to(x)
        moved = op.Neg(_behind(moves, x))
        for move in reversed(moves):
            moved = op.like(move, moved, *move.inputs[1:])
        return op.like(gemm, moved, op.constant(-query.known_constant(w), "weight"), b)


def _moves_to(value: ir.Value) -> list[ir.Node]:
    """The nodes that move elements up to a value, the last first."""
    found: list[ir.Node] = []
    source = value.producer()
    while source is not None and source.op_type in _MOVES and source.inputs[0] is not None:
        found.append(source)
        source = source.inputs[0].producer()
    return found


def _behind(moves: list[ir.Node], value: ir.Value) -> ir.Value:
    """The value that the first of these nodes moves, or `value` where there is none."""
    moved = moves[-1].inputs[0] if moves else value
    assert moved is not None, "a move reads something"
    return moved


def _flat(op: Builder, x: ir.Value, w: ir.Value, bias: ir.Value | None) -> ir.Value:
    *outer, inner = query.known_shape(x)
    rows = op.Reshape(x, _sizes(op, prod(outer), inner))
    return op.Reshape(op.Gemm(rows, w, bias), _sizes(op, *outer, query.known_shape(w)[1]))


def _shape_doubt(x: ir.Value, w: ir.Value) -> str | None:
    if query.static_shape(x) is None:
        return f"the shape of {query.describe(x)} is not known"
    if query.rank(w) != 2:
        return f"{query.describe(w)} is not one matrix"
    return None if query.is_float(w) else f"{query.describe(w)} is not float"


def _is_bias(b: ir.Value | None, x: ir.Value, w: ir.Value) -> bool:
    """True if a constant is one number for each column of `w`, in a shape that leaves that of the product alone."""
    shape, columns = query.static_shape(b) or (), query.known_shape(w)[-1:]
    return shape[-1:] == columns and prod(shape) == prod(columns) and len(shape) <= (query.rank(x) or 0)


def _sizes(op: Builder, *sizes: int) -> ir.Value:
    return op.constant(np.array(sizes, np.int64), "shape")
