"""Small models from a few lines of ONNX text."""

from __future__ import annotations

import onnx_ir as ir

from tests.builder import from_text


def model(body: str, signature: str = "(float[4] x) => (float[4] y)", constants: str = "") -> ir.Model:
    """A model with one input and one output, unless the signature says otherwise."""
    return from_text(signature, body, constants=constants)


def ops(result: ir.Model) -> list[str]:
    """The op types of the main graph, in order."""
    return [node.op_type for node in result.graph]
