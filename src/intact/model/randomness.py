"""Nodes that draw random numbers anew in every run, so that no two runs of a model can be compared."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import some
from intact.model import query

_DRAWS = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
_SHOWN = 3


def why_incomparable(model: ir.Model) -> str | None:
    """The reason why two runs of a model differ, or None where they do not."""
    drawing = [f"{node.name} ({node.op_type})" for node in query.all_nodes(model) if draws(node)]
    return f"{some(drawing, _SHOWN)}: random numbers are drawn, so that no two runs are alike" if drawing else None


def draws(node: ir.Node) -> bool:
    """True for a node that draws and says no seed; a Dropout does where it is fixed in training mode."""
    if node.domain or "seed" in node.attributes:
        return False
    training = query.input_(node, 2) if node.op_type == "Dropout" else None
    return node.op_type in _DRAWS or (training is not None and query.scalar(training) == 1)
