"""Models with If, Loop and Scan: compute inside bodies is observed, quantized and right, and nothing crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact
from intact.numbers.decibels import sqnr_db
from tests.builder import from_text

RNG = np.random.default_rng(0)


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: (RNG.standard_normal(shape) / 3).astype(np.float32) for name, shape in shapes.items()}


RECURRENT = """a = MatMul(v, U) b = MatMul(s, W) c = Add(a, b) d = Tanh(c) o = Identity(d)"""
NETS = {
    "if": (
        "(float[4,16] x, bool k) => (float[4,8] y)",
        """y = If (k) <then_branch = t () => (float[4,8] p) { p = MatMul(x, w) },
                       else_branch = e () => (float[4,8] q) { n = Neg(x) q = MatMul(n, w) }>""",
        weights(w=(16, 8)),
        {"k": np.array([True, False] * 16)},
        ["y/then/p", "y/else/q"],
    ),
    "nested if": (
        "(float[4,16] x, bool k, bool l) => (float[4,8] y)",
        """m = MatMul(x, w)
           i = If (k) <then_branch = t () => (float[4,8] p) {
                  g = MatMul(m, v)
                  p = If (l) <then_branch = t2 () => (float[4,8] p2) { p2 = MatMul(g, v) },
                              else_branch = e2 () => (float[4,8] q2) { r2 = Relu(g) q2 = MatMul(r2, u) }> },
                       else_branch = e () => (float[4,8] q) { q = MatMul(m, u) }>
           y = Add(i, m)""",
        weights(w=(16, 8), v=(8, 8), u=(8, 8)),
        {"k": np.array([True, True, False, False] * 8), "l": np.array([True, False] * 16)},
        ["m", "i/then/g", "i/then/p/then/p2", "i/then/p/else/q2", "i/else/q"],
    ),
    "loop": (
        "(float[5,4,16] x, float[4,8] h) => (float[4,8] y, float[t,4,8] ys)",
        f"""y, ys = Loop (n, , h) <body = l (int64 i, bool go, float[4,8] s)
                => (bool more, float[4,8] d, float[4,8] o)
                {{ more = Identity(go) v = Gather(x, i) {RECURRENT} }}>""",
        {**weights(U=(16, 8), W=(8, 8)), "n": np.array(5)},
        {"h": RNG.standard_normal((32, 4, 8)).astype(np.float32)},
        ["y/body/a", "y/body/b"],
    ),
    "scan": (
        "(float[5,4,16] x, float[4,8] h) => (float[4,8] y, float[5,4,8] ys)",
        f"""y, ys = Scan <num_scan_inputs = 1, body = l (float[4,8] s, float[4,16] v) => (float[4,8] d, float[4,8] o)
                {{ {RECURRENT} }}> (h, x)""",
        weights(U=(16, 8), W=(8, 8)),
        {"h": RNG.standard_normal((32, 4, 8)).astype(np.float32)},
        ["y/body/a", "y/body/b"],
    ),
}


def save(net: str, folder: Path) -> dict[str, np.ndarray]:
    """A model and its rows in `folder`; nodes are called after their outputs."""
    signature, text, constants, rows, _ = NETS[net]
    model = from_text(signature, text, weights=constants)
    ir.save(model, folder / "m.onnx")
    shape = next(value.shape.numpy() for value in model.graph.inputs if value.name == "x")
    arrays = {"x": RNG.standard_normal((32, *shape)).astype(np.float32), **rows}
    np.savez(folder / "rows.npz", **arrays)
    return arrays


def nodes_inside(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    bodies = [attribute.g for node in graph.node for attribute in node.attribute if attribute.type == attribute.GRAPH]
    return [node for body in bodies for node in (*body.node, *nodes_inside(body))]


RUN = """
import sys, numpy as np, onnxruntime as ort
model, rows, out = sys.argv[1:]
arrays, found = dict(np.load(rows)), {}
for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_" + level)
    session = ort.InferenceSession(model, options)
    for index in range(8):
        (y, *_) = session.run(None, {name: np.asarray(array[index]) for name, array in arrays.items()})
        found[level + str(index)] = y
np.savez(out, **found)
"""


@pytest.mark.parametrize("precision", ["uint8", "int8", "w8a16"])
@pytest.mark.parametrize("net", NETS)
def test_compute_inside_bodies_is_quantized_and_right_at_every_level_of_optimization(net, precision, tmp_path):
    arrays = save(net, tmp_path)
    built = intact.build(
        tmp_path / "m.onnx", precision=precision, data=tmp_path / "rows.npz", device="cpu", output=tmp_path / "out"
    )
    assert built.verdict == "good", built.verdict_reasons
    inside = nodes_inside(onnx.load(tmp_path / "out/model.qdq.onnx").graph)
    planned = [name for name in NETS[net][4] if "/" in name]
    assert sum(node.op_type == "MatMul" for node in inside) == len(planned)
    behind = {out for node in inside if node.op_type == "DequantizeLinear" for out in node.output}
    products = [node for node in inside if node.op_type == "MatMul"]
    assert all(set(node.input) <= behind for node in products), "both operands of each product are on grids"
    order = [tmp_path / "out/model.onnx", tmp_path / "rows.npz", tmp_path / "found.npz"]
    ran = subprocess.run([sys.executable, "-c", RUN, *map(str, order)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    reference = ort.InferenceSession(tmp_path / "m.onnx")
    for name, found in np.load(tmp_path / "found.npz").items():
        (expected, *_) = reference.run(None, {key: np.asarray(array[int(name[-1])]) for key, array in arrays.items()})
        assert sqnr_db(float((expected**2).sum()), float(((found - expected) ** 2).sum())) > 24, name


@pytest.mark.parametrize("net", NETS)
def test_nodes_inside_bodies_are_planned_under_their_paths(net, tmp_path):
    save(net, tmp_path)
    planned = intact.plan(tmp_path / "m.onnx", precision="uint8", output=tmp_path / "plan.toml")
    assert {name for name, dtype in planned.nodes.items() if dtype == "uint8"} >= set(NETS[net][4])


def test_a_node_inside_a_body_is_left_out_by_its_path(tmp_path):
    save("nested if", tmp_path)
    left = "i/then/p/then/p2"
    intact.quantize(
        tmp_path / "m.onnx",
        precision="uint8",
        data=tmp_path / "rows.npz",
        exclude_node=[left],
        output=tmp_path / "q.onnx",
    )
    node = next(node for node in nodes_inside(onnx.load(tmp_path / "q.onnx").graph) if node.name == left)
    assert node.input[1] == "v"


def test_a_weight_that_two_branches_read_is_stored_once(tmp_path):
    save("if", tmp_path)
    intact.quantize(tmp_path / "m.onnx", precision="w8a16", data=tmp_path / "rows.npz", output=tmp_path / "q.onnx")
    graph = onnx.load(tmp_path / "q.onnx").graph
    inner = [tensor for node in graph.node for item in node.attribute for tensor in item.g.initializer]
    large = [tensor for tensor in (*graph.initializer, *inner) if np.prod(tensor.dims) == 16 * 8]
    assert len(large) == 1 and large[0].data_type in (TensorProto.INT8, TensorProto.UINT8)


def test_a_branch_that_no_sample_takes_stays_in_float_and_is_named(tmp_path):
    arrays = save("nested if", tmp_path)
    rows = {**arrays, "k": np.ones(32, bool), "l": np.ones(32, bool)}
    written = intact.quantize(tmp_path / "m.onnx", precision="uint8", data=rows, output=tmp_path / "q.onnx")
    (note,) = [text for text in written.warnings if "no sample runs" in text]
    assert "i/then/p/else/q2" in note and "i/then/p/then/p2" not in note
    float_nodes = [
        node for node in nodes_inside(onnx.load(tmp_path / "q.onnx").graph) if node.name == "i/then/p/else/q2"
    ]
    assert float_nodes[0].input[1] == "u"


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
