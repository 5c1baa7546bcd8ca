"""LSTM, GRU and RNN on the CPU: integer weights with a scale for each row of each gate, states in float."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUTS, STEPS, BATCH = 32, 16, 7, 2
RNG = np.random.default_rng(0)


def uniform(*shape: int) -> np.ndarray:
    return (RNG.uniform(-1, 1, shape) / np.sqrt(HIDDEN)).astype(np.float32)


def network(op: str, direction: str, *, peepholes: bool = False, lengths: bool = False) -> onnx.ModelProto:
    """A recurrent layer with its states as inputs and outputs, and a product behind it."""
    count = 2 if direction == "bidirectional" else 1
    rows = GATES[op] * HIDDEN
    weights = {"W": uniform(count, rows, INPUTS), "R": uniform(count, rows, HIDDEN), "B": uniform(count, 2 * rows)}
    weights |= {"V": uniform(HIDDEN, 8), "lengths": np.array([STEPS, 3], np.int32), "P": uniform(count, 3 * HIDDEN)}
    states = ["h", "c"] if op == "LSTM" else ["h"]
    inputs = ["x", "W", "R", "B", "lengths" if lengths else "", *states, *(["P"] if peepholes else [])]
    results = [f"{name}_out" for name in states]
    nodes = [
        helper.make_node(op, inputs, ["Y", *results], name="layer", hidden_size=HIDDEN, direction=direction),
        helper.make_node("MatMul", ["Y", "V"], ["y"], name="product"),
    ]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, BATCH, INPUTS])]
    ports += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, BATCH, HIDDEN]) for name in states]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [STEPS, count, BATCH, 8])]
    outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [count, BATCH, HIDDEN]) for name in results]
    used = {name for node in nodes for name in node.input}
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items() if name in used]
    graph = helper.make_graph(nodes, "g", ports, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


CASES = [
    ("LSTM", "forward", {}),
    ("LSTM", "bidirectional", {"peepholes": True}),
    ("LSTM", "reverse", {"lengths": True}),
    ("GRU", "forward", {}),
    ("GRU", "bidirectional", {"lengths": True}),
    ("RNN", "reverse", {}),
]


@pytest.mark.parametrize(("op", "direction", "extra"), CASES)
def test_weights_are_integers_by_row_and_the_result_keeps_40_db(op, direction, extra, tmp_path):
    given = network(op, direction, **extra)
    onnx.save(given, tmp_path / "m.onnx")
    built = intact.build(tmp_path / "m.onnx", precision="w8a16", device="cpu", output=tmp_path / "out")
    assert built.verdict == "good" and min(row.sqnr_db for row in built.accuracy) > 40
    written = onnx.load(tmp_path / "out/model.qdq.onnx").graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.initializer}
    (layer,) = [node for node in written.node if node.op_type == op]
    behind = {node.output[0]: node for node in written.node if node.op_type == "DequantizeLinear"}
    for index, name in ((1, "W"), (2, "R")):
        source = next(tensor for tensor in given.graph.initializer if tensor.name == name)
        weight = numpy_helper.to_array(source)
        scale = np.abs(weight).max(axis=(0, 2)) / 127
        integers, scales, _ = (arrays[name] for name in behind[layer.input[index]].input)
        assert np.allclose(scales, scale, rtol=1e-6)
        assert np.array_equal(integers, np.rint(weight.astype(np.float64) / scales[None, :, None].astype(np.float64)))
    assert layer.input[0] == "x", "what it reads stays in float"


def test_what_reads_the_same_tensor_as_a_recurrent_layer_is_quantized_as_ever(tmp_path):
    given = network("GRU", "forward")
    weight = numpy_helper.from_array(uniform(INPUTS, 8), "U")
    given.graph.initializer.append(weight)
    given.graph.node.append(helper.make_node("MatMul", ["x", "U"], ["z"], name="beside"))
    given.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [STEPS, BATCH, 8]))
    onnx.save(given, tmp_path / "m.onnx")
    planned = intact.plan(tmp_path / "m.onnx", precision="uint8", output=tmp_path / "plan.toml")
    assert planned.nodes == dict.fromkeys(["layer", "product", "beside"], "uint8")
    assert not planned.conversions and "x" in planned.tensors and planned.uses["layer"] == (1, 2)
