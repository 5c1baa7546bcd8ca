"""Both sides of a firing see the same inputs, whatever earlier firings changed upstream."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching import rewriter
from intact.model import query, shapes
from intact.rules.proof import exactness, witness
from intact.rules.quantized import folding, integer_forms
from tests.builder import Net
from tests.rules.quantized.cases.to_qlinear import kernel_rule

ZERO = np.uint8(0)


def test_a_node_that_stays_in_a_match_is_read_by_both_sides_of_it():
    net = Net()
    x = net.dequantize(net.quantize("x", 0.05, np.uint8(128)), 0.05, np.uint8(128))
    gate = net.dequantize(net.quantize(net.op("Sigmoid", x), 1 / 256, ZERO), 1 / 256, ZERO)
    half = net.dequantize(np.array(128, np.uint8), 1 / 256, ZERO)
    centred = net.quantize(net.op("Sub", gate, half), 1 / 256, np.uint8(128))
    model = net.model({"x": np.zeros((1, 8), np.float32)}, centred)

    seen = witness.of(model, [kernel_rule("Sigmoid"), integer_forms.SubToAdd()])

    assert [pair.application.rule for pair in seen.pairs] == ["sigmoid_to_qlinear", "sub_to_add"]
    (sub,) = (node for node in query.all_nodes(seen.model) if node.op_type == "Sub")
    (add,) = (node for node in query.all_nodes(seen.model) if node.op_type == "Add")
    assert sub.inputs[0] is add.inputs[0]


@pytest.mark.parametrize("zero", ["int4 z = {1}", "uint4 z = {9}"])
def test_integers_that_no_array_can_hold_are_compared_as_bytes(zero):
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2, 8] x) => (float[2, 8] y) <float s = {0.2}, %s> {
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        c = QuantizeLinear(b, s, z) y = DequantizeLinear(c, s, z)
    }"""
    model = ir.from_onnx_text(text % zero)
    shapes.infer_shapes(model)
    rules = [folding.DropSelfRequantize()]
    rows = [{"x": np.linspace(-4, 4, 16, dtype=np.float32).reshape(2, 8)}]
    found = exactness.validate(model, rewriter.apply(model.clone(), rules), rules, rows)
    assert (found.checked, found.identical) == (1, True)


A, B = (np.float32(0.5), np.uint8(3)), (np.float32([0.25, 0.125]), np.int8([0, 0]))
WEIGHT = np.zeros((4, 2), np.int8)


def gemm(net, data="x", **attributes):
    return net.op("Gemm", net.dequantize(data, *A), net.dequantize(WEIGHT, *B, axis=1), **attributes)


@pytest.mark.parametrize(
    ("build", "grid", "sums"),
    [
        (lambda net: net.dequantize("x", *A), 0.5, None),
        (lambda net: net.dequantize(WEIGHT, *B, axis=1), 0.25, None),
        (gemm, None, 0.125),
        (lambda net: gemm(net, alpha=-2.0), None, 0.25),
        (lambda net: net.op("QGemm", "x", *A, WEIGHT, *B, _domain="com.microsoft", alpha=0.5), None, 0.0625),
        (lambda net: net.op("Gemm", net.dequantize("x", *A), "w"), None, None),
        (lambda net: net.op("Add", net.dequantize("x", *A), net.dequantize("x", *A)), None, None),
        (lambda net: "w", None, None),
    ],
)
def test_a_float_is_held_to_the_step_of_its_grid_or_of_its_sums(build, grid, sums):
    net = Net()
    output = build(net)
    inputs = {"x": np.zeros((4, 4), np.uint8), "w": np.zeros((4, 4), np.float32)}
    model = net.model(inputs, output)
    value = next(value for value in model.graph.outputs if value.name == output)
    assert (witness.grid_step(value), witness.sum_step(value)) == (grid, sums)


def test_an_input_that_takes_the_place_of_a_match_is_compared_as_well():
    """An input of a model cannot be its output: a copy of it is."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (uint8[2, 8] x) => (float[2, 8] y)
        <float s = {0.2}, uint8 z = {9}> {
        a = DequantizeLinear(x, s, z) b = QuantizeLinear(a, s, z) y = DequantizeLinear(b, s, z)
    }"""
    model = ir.from_onnx_text(text)
    shapes.infer_shapes(model)
    rules = [folding.DropSelfRequantize()]
    rows = [{"x": np.arange(240, 256, dtype=np.uint8).reshape(2, 8)}]
    found = exactness.validate(model, rewriter.apply(model.clone(), rules), rules, rows)
    assert (found.checked, found.identical) == (1, True)
