"""Recurrent layers written out compute what ONNX Runtime's own kernels do."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from intact.matching.rewriter import apply
from intact.model import shapes
from intact.rules.discovery import rules_of
from intact.rules.float import recurrent
from intact.rules.float.optimization import optimize
from intact.runtime import ort_cpu
from tests.model.small import ops

RULES = rules_of(recurrent)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
READ = {"y", "h_out", "c_out"}
HIDDEN, INPUTS, STEPS, BATCH = 6, 5, 4, 2
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(op, direction="forward", *, left_out=(), states=True, outputs=None, weights=None, steps=STEPS, **attributes):
    """A layer that reads `x` and its states, and returns all that it can, but for the inputs in `left_out`."""
    count = 2 if direction == "bidirectional" else 1
    rows, names = GATES[op] * HIDDEN, ["h", "c"][: 2 if op == "LSTM" else 1]
    known = {"W": floats(count, rows, INPUTS), "R": floats(count, rows, HIDDEN), "B": floats(count, 2 * rows)}
    known |= {"P": floats(count, 3 * HIDDEN)} if op == "LSTM" else {}
    known |= {"lengths": np.full(BATCH, steps, np.int32)}
    known |= weights or {}
    inputs = ["x", "W", "R", "B", "lengths", "h", *(["c", "P"] if op == "LSTM" else [])]
    gone = {*left_out, *(() if states else names)}
    inputs = ["" if name in gone else name for name in inputs]
    outputs = outputs or ["y", *(f"{name}_out" for name in names)]
    node = helper.make_node(op, inputs, outputs, "layer", hidden_size=HIDDEN, direction=direction, **attributes)
    ports = {"x": (steps, BATCH, INPUTS)} | {name: (count, BATCH, HIDDEN) for name in names if name not in gone}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in outputs
            if name not in ("", "unread")
        ],
        [numpy_helper.from_array(array, name) for name, array in known.items() if name in inputs],
    )
    made = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    shapes.infer_shapes(made)
    return made


def inferred(model):
    shapes.infer_shapes(model)
    return [value for node in model.graph for value in node.outputs]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "extra"),
    [
        ("LSTM", {}),
        ("LSTM", {"left_out": ("P", "lengths", "B")}),
        ("LSTM", {"states": False}),
        ("LSTM", {"steps": 1, "activations": ["sigmoid", "tanh", "tanh"]}),
        ("LSTM", {"outputs": ["", "", "c_out"]}),
        ("LSTM", {"outputs": ["y"]}),
        ("LSTM", {"outputs": ["unread", "h_out", "c_out"]}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "states": False}),
        ("GRU", {"states": False, "left_out": ("B",)}),
        ("RNN", {}),
        ("RNN", {"states": False}),
    ],
)
def test_a_layer_written_out_computes_the_same(op, extra, direction):
    count = 2 if direction == "bidirectional" else 1
    extra = {**extra, "activations": extra["activations"] * count} if "activations" in extra else extra
    before = layer(op, direction, **extra)
    after = apply(before.clone(), RULES)
    assert [item.rule for item in after.applications] == [f"unroll_{op.lower()}"]
    assert op not in ops(after.model)
    assert all(value.shape is not None for value in inferred(after.model))
    feeds = {value.name: floats(*value.shape.numpy()) for value in before.graph.inputs}
    expected, found = ort_cpu.run(before, feeds), ort_cpu.run(after.model, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=3e-6)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"steps": 17}, "its steps are not known, or more than 16"),
        ({"weights": {"lengths": np.array([STEPS, 2], np.int32)}}, "its sequences differ in length"),
        ({"clip": 1.0}, "it clips, couples gates, or has batches first"),
        ({"input_forget": 1}, "it clips, couples gates, or has batches first"),
        ({"activations": ["Sigmoid", "Relu", "Tanh"]}, "its functions are ['Sigmoid', 'Relu', 'Tanh']"),
    ],
)
def test_other_layers_stay(extra, reason):
    done = apply(layer("LSTM", **extra), RULES)
    assert not done.applications and {item.reason for item in done.refusals} == {reason}


def test_a_layer_whose_weights_are_computed_stays():
    model = layer("RNN")
    weight = model.graph.initializers.pop("R")
    weight.const_value = None
    model.graph.inputs.append(weight)
    done = apply(model, RULES)
    assert {item.reason for item in done.refusals} == {"its weights are computed"}


def test_layers_are_written_out_only_where_that_is_asked_for():
    model = layer("LSTM")
    assert "LSTM" in ops(optimize(model, unroll_layers=True).model), "no target says that it has what comes instead"
    assert "LSTM" in ops(optimize(model, ops=lambda *key: True).model)
    assert "LSTM" not in ops(optimize(model, ops=lambda *key: True, unroll_layers=True).model)
