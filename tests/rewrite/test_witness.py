"""Both sides of a firing see the same inputs, whatever earlier firings changed upstream."""

from __future__ import annotations

import numpy as np

from intact.graph import query
from intact.rewrite import integer_forms, to_qlinear, witness
from tests.rewrite.harness import Net

ZERO = np.uint8(0)


def test_a_node_that_stays_in_a_match_is_read_by_both_sides_of_it():
    net = Net()
    x = net.dequantize(net.quantize("x", 0.05, np.uint8(128)), 0.05, np.uint8(128))
    gate = net.dequantize(net.quantize(net.op("Sigmoid", x), 1 / 256, ZERO), 1 / 256, ZERO)
    half = net.dequantize(np.array(128, np.uint8), 1 / 256, ZERO)
    centred = net.quantize(net.op("Sub", gate, half), 1 / 256, np.uint8(128))
    model = net.model({"x": np.zeros((1, 8), np.float32)}, centred)

    seen = witness.of(model, [to_qlinear.SigmoidToQLinear(), integer_forms.SubToAdd()])

    assert [pair.application.rule for pair in seen.pairs] == ["sigmoid_to_qlinear", "sub_to_add"]
    (sub,) = (node for node in query.all_nodes(seen.model) if node.op_type == "Sub")
    (add,) = (node for node in query.all_nodes(seen.model) if node.op_type == "Add")
    assert sub.inputs[0] is add.inputs[0]
