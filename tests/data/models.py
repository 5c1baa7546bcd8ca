"""Small models for the tests of data, from ONNX text."""

from __future__ import annotations

import onnx_ir as ir

from tests.builder import from_text


def model(inputs: str, body: str = "", *, weights: str = "") -> ir.Model:
    """A model with these inputs; without a body nothing reads them."""
    body = body or "y = Constant <value_float = 0.0> ()"
    return from_text(f"({inputs}) => (y)", body, constants=weights, opset=17)


IMAGE = model("float[1, 3, 4, 5] x")
