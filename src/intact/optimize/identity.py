"""Nodes that do nothing at inference."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from intact.graph import edit, query
from intact.graph.pattern import Patterns, Var
from intact.graph.rewriter import EXACT, Rule


class DropIdentity(Rule):
    """Identity(x) = x."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var) -> Any:
        return op.Identity(x, _name="node")

    def check(self, x: ir.Value, node: ir.Node) -> str | None:
        return _output_keeps_name(x, node)

    def rewrite(self, op: Any, x: ir.Value) -> ir.Value:
        return x


class DropDropout(Rule):
    """Dropout(x) = x outside of training."""

    exactness = EXACT

    def pattern(self, op: Patterns, x: Var, ratio: Var | None = None, training: Var | None = None) -> Any:
        return op.Dropout(x, ratio, training, _name="node")

    def check(self, x: ir.Value, training: ir.Value | None, node: ir.Node) -> str | None:
        if training is not None and query.scalar(training) != 0:
            return f"training_mode is {query.describe(training)}, and not known to be false"
        return _output_keeps_name(x, node)

    def rewrite(self, op: Any, x: ir.Value) -> ir.Value:
        return x


def _output_keeps_name(x: ir.Value, node: ir.Node) -> str | None:
    """Why `x` cannot stand in for the node: the graph returns both, and each needs a name of its own."""
    assert node.graph is not None, f"{node.name!r} is in no graph"
    output = node.outputs[0]
    if not output.is_graph_output() or edit.can_be_renamed(x, node.graph):
        return None
    return f"graph output {output.name!r} and {query.describe(x)} need a name each"


RULES: tuple[Rule, ...] = (DropIdentity(), DropDropout())
