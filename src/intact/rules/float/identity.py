"""Nodes that do nothing at inference."""

from __future__ import annotations

import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Patterns, Roots, Var
from intact.matching.rewriter import EXACT, Rule
from intact.model import edit, query


class DropRule(Rule):
    """A rule that puts `x` in place of the node `root`, which does nothing to it."""

    exactness = EXACT

    def check(self, x: ir.Value, root: ir.Node) -> str | None:
        return output_keeps_name(x, root)

    def rewrite(self, op: Builder, x: ir.Value) -> ir.Value:
        return x


class DropIdentity(DropRule):
    """Identity(x) = x."""

    def pattern(self, op: Patterns, x: Var) -> Roots:
        return op.Identity(x, _name="root")


class DropDropout(DropRule):
    """Dropout(x) = x outside of training."""

    def pattern(self, op: Patterns, x: Var, ratio: Var | None = None, training: Var | None = None) -> Roots:
        return op.Dropout(x, ratio, training, _name="root")

    def check(self, x: ir.Value, root: ir.Node, training: ir.Value | None = None) -> str | None:
        if training is not None and query.scalar(training) != 0:
            return f"training_mode is {query.describe(training)}, and not known to be false"
        return super().check(x, root)


class DropNeutralConstant(DropRule):
    """x + 0 = x − 0 = x, and x · 1 = x / 1 = x."""

    def pattern(self, op: Patterns, x: Var, c: Var) -> Roots:
        return op.node(("Add", "Sub", "Mul", "Div"), x, op.constant(c), _name="root")

    def check(self, x: ir.Value, root: ir.Node, c: ir.Value | None = None) -> str | None:
        neutral = 0 if root.op_type in ("Add", "Sub") else 1
        shape = query.static_shape(c)
        # Shapes first: the elements of a constant are many.
        if shape is None or not _leaves_shape(x, shape):
            return f"{query.describe(c)} may change the shape"
        if not (query.known_constant(c) == neutral).all():
            return f"{query.describe(c)} is not {neutral} throughout"
        return super().check(x, root)


def _leaves_shape(x: ir.Value, shape: tuple[int, ...]) -> bool:
    """True if a constant of this shape broadcasts to `x` without a change of its shape."""
    if x.shape is None or len(shape) > len(x.shape):
        return False
    return all(size in (1, known) for size, known in zip(shape[::-1], tuple(x.shape)[::-1], strict=False))


def output_keeps_name(x: ir.Value, node: ir.Node) -> str | None:
    """Refuse to let `x` stand in for a node where the graph returns both: each needs a name of its own."""
    assert node.graph is not None, f"{node.name!r} is in no graph"
    output = node.outputs[0]
    if not output.is_graph_output() or edit.can_be_renamed(x, node.graph):
        return None
    return f"graph output {output.name!r} and {query.describe(x)} need a name each"
