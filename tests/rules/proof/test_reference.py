"""A copy that ONNX Runtime runs stands for the same integers as the model that it does not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from intact.model import shapes
from intact.rules.proof import reference

ROWS = np.arange(-128, -96, dtype=np.int8).reshape(4, 8)
WEIGHT = np.arange(200, 240, dtype=np.uint8).reshape(8, 5)


def product_of_both_signs() -> ir.Model:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (int8[4, 8] x, uint8[8, 5] w) => (int8[4, 5] y)
        <float s = {0.5}, int8 z = {-3}, float v = {0.25}, uint8 u = {128}, float t = {64.0}, int8 o = {7}> {
        y = QLinearMatMul(x, s, z, w, v, u, t, o)
    }"""
    model = ir.from_onnx_text(text)
    weight = model.graph.inputs.pop()
    weight.const_value = ir.tensor(WEIGHT, name="w")
    model.graph.register_initializer(weight)
    shapes.infer_shapes(model)
    return model


def test_int8_times_uint8_is_computed_as_it_is_written():
    runnable = reference.runnable(product_of_both_signs())
    session = ort.InferenceSession(ir.to_proto(runnable).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": ROWS})
    sums = (ROWS.astype(np.int64) + 3) @ (WEIGHT.astype(np.int64) - 128)
    assert np.array_equal(found, np.clip(np.rint(sums * (0.5 * 0.25 / 64.0)) + 7, -128, 127))
