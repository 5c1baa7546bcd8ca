"""Rules for quantized graphs, one family a file, and the stage that applies them."""

from __future__ import annotations

import onnx_ir as ir

from intact.graph import rewriter
from intact.graph.rewriter import Rewritten, Rule
from intact.rewrite import clipping

RULES: tuple[Rule, ...] = (*clipping.RULES,)


def rewrite(model: ir.Model) -> Rewritten:
    """A copy of a quantized model after every rule has fired wherever it could."""
    return rewriter.apply(model.clone(), RULES)
