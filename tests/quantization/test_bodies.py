"""Models with If and Loop: what a body reads of a quantized tensor must not end ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact


def captured() -> onnx.ModelProto:
    """A Conv whose result two bodies read, the first of them under a condition that is always true."""

    def body(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        return helper.make_graph([node], name, [], [result])

    squeezed = body("t", helper.make_node("Squeeze", ["r", "axes"], ["t1"]))
    same = body("e", helper.make_node("Identity", ["r"], ["e1"]))
    positive = body("t2g", helper.make_node("Relu", ["v"], ["t2"]))
    negative = body("e2g", helper.make_node("Neg", ["v"], ["e2"]))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["k"], name="conv"),
        helper.make_node("Relu", ["k"], ["r"], name="relu"),
        helper.make_node("If", ["yes"], ["v"], name="first", then_branch=squeezed, else_branch=same),
        helper.make_node("If", ["c"], ["y"], name="second", then_branch=positive, else_branch=negative),
    ]
    weights = {
        "w": np.random.default_rng(0).standard_normal((4, 3, 3)).astype(np.float32),
        "axes": np.array([2]),
        "yes": np.array(True),
    }
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 3]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])]
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("precision", ["uint8", "int8", "w8a16"])
def test_what_is_written_loads_where_bodies_read_a_quantized_tensor(precision, tmp_path):
    onnx.save(captured(), tmp_path / "m.onnx")
    written = intact.quantize(tmp_path / "m.onnx", precision=precision, effort="fast", output=tmp_path / "q.onnx")
    assert written.nodes_quantized > 0
    code = f"import onnxruntime as ort; ort.InferenceSession({str(tmp_path / 'q.onnx')!r})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert loaded.returncode == 0, loaded.stderr
    model = onnx.load(tmp_path / "q.onnx")
    inside = [n for node in model.graph.node for a in node.attribute if a.type == a.GRAPH for n in a.g.node]
    behind = {out for node in model.graph.node if node.op_type == "DequantizeLinear" for out in node.output}
    assert inside and not behind & {name for node in inside for name in node.input}
