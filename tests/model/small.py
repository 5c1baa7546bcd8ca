"""Small models from a few lines of ONNX text."""

from __future__ import annotations

import onnx_ir as ir

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'


def model(body: str, signature: str = "(float[4] x) => (float[4] y)", constants: str = "") -> ir.Model:
    """A model whose nodes are named after their first outputs."""
    declared = f"<{constants}>" if constants else ""
    result = ir.from_onnx_text(f"{HEADER}\nmain {signature}\n{declared}\n{{\n{body}\n}}")
    for graph in result.graphs():
        for node in graph:
            node.name = node.outputs[0].name
    return result


def ops(result: ir.Model) -> list[str]:
    """The op types of the main graph, in order."""
    return [node.op_type for node in result.graph]
