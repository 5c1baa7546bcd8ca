"""Both sides of a firing see the same inputs, whatever earlier firings changed upstream."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching import rewriter
from intact.model import query, shapes
from intact.rules.proof import exactness, witness
from intact.rules.quantized import folding, integer_forms
from tests.rules.proof.harness import Net
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
