"""Models that are quantized already are recognised, with their types."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from intact.model.detect import detect

ZEROS = ", ".join("0" * 16)
SCALES = (
    "<float xs = {0.1}, uint8 xz = {3}, float ws = {0.1}, int8 wz = {0}, float bs = {0.1}, "
    f"int8[4,4] w = {{{ZEROS}}}, int32[4] b = {{0, 0, 0, 0}}>"
)
HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> g'
MODELS = {
    "qdq": (
        f"""{HEAD} (float[4,4] x) => (y) {SCALES} {{
            q = QuantizeLinear(x, xs, xz)  d = DequantizeLinear(q, xs, xz)  v = DequantizeLinear(w, ws, wz)
            c = DequantizeLinear(b, bs)  y = Gemm(d, v, c) }}""",
        (("DequantizeLinear", 3), ("QuantizeLinear", 1)),
        ("uint8",),
        ("int8",),
    ),
    "weights only": (
        f"""{HEAD} (float[4,4] x) => (y) {SCALES} {{ v = DequantizeLinear(w, ws, wz)  y = MatMul(x, v) }}""",
        (("DequantizeLinear", 1),),
        (),
        ("int8",),
    ),
    "integer operators": (
        f"""{HEAD} (uint8[4,4] x) => (y) {SCALES} {{ y = QLinearMatMul(x, xs, xz, w, ws, wz, xs, xz) }}""",
        (("QLinearMatMul", 1),),
        ("uint8",),
        ("int8",),
    ),
    "blocks of bits": (
        f"""{HEAD} (float[4,32] x, uint8[4,1,16] w, float[4] s) => (y) {{
            y = com.microsoft.MatMulNBits<K = 32, N = 4, bits = 4, block_size = 32>(x, w, s) }}""",
        (("MatMulNBits", 1),),
        (),
        (),
    ),
    "compiled": (
        f"""{HEAD} (float[4,4] x) => (y) {{ y = com.microsoft.EPContext<embed_mode = 0>(x) }}""",
        (("EPContext", 1),),
        (),
        (),
    ),
    "in a body": (
        f"""{HEAD} (float[4,4] x, bool p) => (y) {SCALES} {{
            y = If (p) <then_branch = t () => (a) {{ q = QuantizeLinear(x, xs, xz)  a = DequantizeLinear(q, xs, xz) }},
                        else_branch = e () => (b) {{ b = Identity(x) }}> }}""",
        (("DequantizeLinear", 1), ("QuantizeLinear", 1)),
        ("uint8",),
        (),
    ),
}


def parsed(text):
    """The model of a text, with the types that shape inference would add."""
    model = ir.from_onnx_text(text)
    for graph in model.graphs():
        for node in graph:
            if node.op_type == "QuantizeLinear":
                node.outputs[0].dtype = node.inputs[2].dtype
    return model


@pytest.mark.parametrize("name", MODELS)
def test_what_makes_a_model_quantized_is_told(name):
    text, operators, activations, weights = MODELS[name]
    found = detect(parsed(text))
    assert (found.operators, found.activation_types, found.weight_types) == (operators, activations, weights)
    assert str(found).startswith("the model is already quantized (")
    for op, count in operators:
        assert f"{count} {op}" in str(found)


def test_a_float_model_is_not_quantized():
    assert (
        detect(ir.from_onnx_text(f"{HEAD} (float[4] x) => (y) {{ c = Cast<to = 6>(x)  y = Cast<to = 1>(c) }}")) is None
    )
