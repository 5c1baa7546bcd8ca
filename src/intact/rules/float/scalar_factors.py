"""Scalar factors, such as the 1/√d of attention, moved up into the weights of the linear layer they come from."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query

_MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Slice", "Gather")
_LONGEST_WAY = 8


class ScaleMatMul(Rule):
    """c·(x·W + b) = x·(c·W) + c·b for one number c, and the same for a division, up to float rounding."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, w: Var, c: Var, b: Var | None = None) -> Roots:
        product = op.MatMul(x, op.constant(w))
        shifted = op.any_of(op.Add(product, op.constant(b)), product)
        return op.node(("Mul", "Div"), shifted, op.constant(c), _name="root")

    def check(self, w: ir.Value, c: ir.Value, b: ir.Value | None, root: ir.Node) -> str | None:
        doubt = _factor_doubt(c, root)
        return doubt or next(filter(None, (_range_doubt(value, _factor(c, root)) for value in (w, b))), None)

    def rewrite(
        self, op: Builder, x: ir.Value, w: ir.Value, c: ir.Value, b: ir.Value | None, root: ir.Node
    ) -> ir.Value:
        factor = _factor(c, root)
        product = op.MatMul(x, op.constant(_scaled(w, factor), "weight"))
        if b is None:
            return product
        return op.Add(product, op.constant(_scaled(b, factor), "bias"))


class ScaleBeforeMove(Rule):
    """c·move(x) = move(c·x), where a linear layer above can take the factor."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, c: Var, rest: Var) -> Roots:
        return op.node(("Mul", "Div"), op.node(_MOVES, x, op.each(rest), _name="move"), op.constant(c), _name="root")

    def check(self, x: ir.Value, c: ir.Value, root: ir.Node) -> str | None:
        return _factor_doubt(c, root) or _way_doubt(x)

    def rewrite(
        self, op: Builder, x: ir.Value, c: ir.Value, rest: tuple[ir.Value, ...], move: ir.Node, root: ir.Node
    ) -> ir.Value:
        scaled = op.Mul(x, _number(op, c, root))
        return op.like(move, scaled, *rest)


class ScaleOperand(Rule):
    """c·(a·b) = (c·a)·b = a·(c·b), where a linear layer above the operand can take the factor."""

    exactness = BOUNDED

    def pattern(self, op: Patterns, a: Var, b: Var, c: Var) -> Roots:
        return op.node(("Mul", "Div"), op.MatMul(a, b), op.constant(c), _name="root")

    def check(self, a: ir.Value, b: ir.Value, c: ir.Value, root: ir.Node) -> str | None:
        doubt = _factor_doubt(c, root)
        return doubt or (None if _way_doubt(a) is None else _way_doubt(b))

    def rewrite(self, op: Builder, a: ir.Value, b: ir.Value, c: ir.Value, root: ir.Node) -> ir.Value:
        number = _number(op, c, root)
        left = _way_doubt(a) is None
        return op.MatMul(op.Mul(a, number), b) if left else op.MatMul(a, op.Mul(b, number))


def _factor(c: ir.Value, root: ir.Node) -> float:
    number = float(query.scalar(c) or 0.0)
    return number if root.op_type == "Mul" else 1 / number


def _factor_doubt(c: ir.Value, root: ir.Node) -> str | None:
    """Refuse a constant that is not one finite factor that leaves the shape alone."""
    number = query.scalar(c)
    if number is None or not np.isfinite(number) or number == 0:
        return f"{query.describe(c)} is not one finite number other than 0"
    if root.op_type == "Div" and root.inputs[0] is c:
        return "it divides the number, not by the number"
    rank = query.rank(root.outputs[0])
    other = next(value for value in root.inputs if value is not c)
    return None if rank is not None and rank == query.rank(other) else "the number may raise the rank"


def _number(op: Builder, c: ir.Value, root: ir.Node) -> ir.Value:
    array = query.known_constant(c)
    return op.constant(np.array(_factor(c, root), array.dtype), "scale")


def _scaled(value: ir.Value, factor: float) -> np.ndarray:
    array = query.known_constant(value)
    with np.errstate(over="ignore"):
        scaled: np.ndarray = (array.astype(np.float64) * factor).astype(array.dtype)
    return scaled


def _range_doubt(value: ir.Value | None, factor: float) -> str | None:
    if value is None:
        return None
    if not query.is_float(value):
        return f"{query.describe(value)} is not float"
    return None if np.isfinite(_scaled(value, factor)).all() else f"{query.describe(value)} would leave its range"


def _way_doubt(value: ir.Value) -> str | None:
    """Refuse where no linear layer above takes a factor: something on the way has other uses, or is not linear."""
    for _ in range(_LONGEST_WAY):
        node = value.producer()
        if node is None or query.only_consumer(value) is None:
            return f"{query.describe(value)} is not the work of one linear layer with no other uses"
        if _takes_factor(node):
            return None
        source = _source(node)
        if source is None:
            return f"{query.describe(value)} is not linear"
        value = source
    return "no linear layer is near"


def _takes_factor(node: ir.Node) -> bool:
    linear = node.op_type in ("MatMul", "Conv", "ConvTranspose", "Gemm")
    return not node.domain and linear and query.is_constant(query.input_(node, 1))


def _source(node: ir.Node) -> ir.Value | None:
    """The input that a factor on the output can pass to: of a move, or of a sum with a constant."""
    if node.domain:
        return None
    if node.op_type in _MOVES:
        return node.inputs[0]
    if node.op_type != "Add":
        return None
    pairs = itertools.permutations(node.inputs)
    return next((value for value, constant in pairs if query.is_constant(constant)), None)
