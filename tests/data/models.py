"""Small models for the tests of data, from ONNX text."""

from __future__ import annotations

import onnx_ir as ir


def model(inputs: str, body: str = "", *, weights: str = "") -> ir.Model:
    """A model with these inputs; without a body nothing reads them."""
    declared = f"<{weights}>" if weights else ""
    body = body or "y = Constant <value_float = 0.0> ()"
    return ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g ({inputs}) => (y) {declared} {{ {body} }}'
    )


IMAGE = model("float[1, 3, 4, 5] x")
