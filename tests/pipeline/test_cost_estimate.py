"""The estimate of a model's cost, against sums that are written out."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import shapes
from intact.pipeline.cost_estimate import estimate
from intact.targets.spec import Costs, Level
from tests.builder import from_text

COSTS = Costs(
    (
        Level("w8a8", "uint8", "int8", 1.0, (1.0, 1.0)),
        Level("w8a16", "uint16", "int8", 2.0, (2.0, 1.0)),
        Level("float", "float", "float", 4.0, (2.0, 2.0)),
    ),
    10.0,
    "a table [cost], rule",
)
GRIDS = {"s": np.float32(0.1), "z": np.uint8(128), "zw": np.int8(0)}


def two_products(*, quantized: bool):
    """A product of 4 × 8 by 8 × 16, on grids or not, and one in float of that by 16 × 2."""
    grids = "q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) w = DequantizeLinear(k, s, zw) m = MatMul(a, w) "
    grids += "qm = QuantizeLinear(m, s, z) f = DequantizeLinear(qm, s, z)"
    weights = {"l": np.ones((16, 2), np.float32), "k": np.ones((8, 16), np.int8 if quantized else np.float32)}
    body = f"{grids if quantized else 'm = MatMul(x, k) f = Identity(m)'} y = MatMul(f, l)"
    model = from_text("(float[4,8] x) => (float[4,2] y)", body, weights=weights | (GRIDS if quantized else {}))
    shapes.infer_shapes(model)
    return model


FIRST, LAST = 4 * 8 * 16 * 4 + 10 * 2 * (4 * 8 + 8 * 16 + 4 * 16), 4 * 16 * 2 * 4 + 10 * 2 * (4 * 16 + 16 * 2 + 4 * 2)
ON_GRID = 4 * 8 * 16 * 1 + 10 * 1 * (4 * 8 + 8 * 16 + 4 * 16)


def test_it_is_multiply_adds_and_bytes_at_the_prices_of_the_types():
    found = estimate(two_products(quantized=True), COSTS, ())
    assert found.ratio == pytest.approx((ON_GRID + LAST) / (FIRST + LAST), rel=1e-12)
    assert (found.float_bits, found.source) == (16, "a table [cost], rule")


def test_nodes_on_the_cpu_are_not_in_it():
    assert estimate(two_products(quantized=True), COSTS, {"y"}).ratio == pytest.approx(ON_GRID / FIRST, rel=1e-12)
    assert estimate(two_products(quantized=True), COSTS, {"m", "y"}) is None


def test_a_model_in_float_costs_what_float_costs():
    assert estimate(two_products(quantized=False), COSTS, ()).ratio == 1.0


def test_shapes_that_a_rule_left_out_are_found_again():
    model = two_products(quantized=True)
    whole = estimate(model, COSTS, ())
    for node in model.graph:
        node.outputs[0].shape = None
    assert estimate(model, COSTS, ()) == whole
    assert all(node.outputs[0].shape is None for node in model.graph), "the model itself stays as it is"
