"""Quantized models without the rounding of some activations."""

from __future__ import annotations

import numpy as np

from intact.model import io
from intact.model.activation_grids import left_unrounded, unrounded
from intact.runtime import ort_cpu
from tests.builder import from_text

TEXT = """
q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) b = Relu(a) c = Neg(a)
p = QuantizeLinear(b, s, z) d = DequantizeLinear(p, s, z) y = Add(d, c)
"""
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_a_model_is_without_rounding_for_as_long_as_that_is_asked_for():
    steps = {"s": np.float32(0.3), "z": np.uint8(100)}
    model = from_text("(float[3,4] x) => (float[3,4] y)", TEXT, weights=steps)
    before, expected = io.to_bytes(model), ort_cpu.run(unrounded(model, {"x"}), {"x": X})["y"]
    assert io.to_bytes(model) == before, "a copy was changed"
    with left_unrounded(model, {"x"}):
        np.testing.assert_array_equal(ort_cpu.run(model, {"x": X})["y"], expected)
    assert io.to_bytes(model) == before
    np.testing.assert_allclose(expected, np.round(np.maximum(X, 0) / np.float32(0.3)) * np.float32(0.3) - X, atol=1e-6)
