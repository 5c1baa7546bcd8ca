"""Half precision: what becomes float16, what stays float32 and why, and how few Casts that takes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import ModelError, SettingsError
from intact.quantization import float16
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model, rows

HALF = {"activation_type": "float16", "weight_type": "float16"}
RNG = np.random.default_rng(3)


def weight(*shape, scale=0.3):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def convert(graph, feeds, **settings):
    """The model in half precision, checked by ONNX itself."""
    result = float16.convert(graph, QuantConfig.from_dict({**HALF, **settings}), feeds)
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    return result


def casts(result):
    return [node for node in result.model.graph if node.op_type == "Cast"]


def kept(result):
    return {row.node: row.reason for row in result.kept}


def half(array):
    return array.astype(np.float16).astype(np.float64)


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


W, B, V = weight(8, 6), weight(6), weight(6, 4)
REFERENCES = [
    ("y = Relu(x)", "float[4,8] y", {}, lambda x: np.maximum(x, 0)),
    ("y = MatMul(x, w)", "float[4,6] y", {"w": W}, lambda x: half(x @ half(W))),
    ("y = Gemm(x, w, b)", "float[4,6] y", {"w": W, "b": B}, lambda x: half(x @ half(W) + half(B))),
    (
        "h = MatMul(x, w)  a = Add(h, b)  g = Relu(a)  y = MatMul(g, v)",
        "float[4,4] y",
        {"w": W, "b": B, "v": V},
        lambda x: half(np.maximum(half(half(x @ half(W)) + half(B)), 0) @ half(V)),
    ),
    ("y = Softmax(x)", "float[4,8] y", {}, lambda x: half(softmax(x))),
    ("t = Transpose(x)  y = Mul(t, t)", "float[8,4] y", {}, lambda x: half(x.T * x.T)),
]


@pytest.mark.parametrize(("body", "outputs", "weights", "reference"), REFERENCES)
def test_numbers_are_those_of_rounding_to_half_after_every_node(body, outputs, weights, reference):
    graph, feeds = model("float[4,8] x", outputs, body, **weights), rows({"x": (4, 8)})
    result = convert(graph, feeds)
    assert result.kept == () and len(result.nodes) == len(list(graph.graph))
    for feed in feeds:
        expected = reference(half(feed["x"]))
        for optimize in (False, True):
            found = ort_cpu.run(result.model, feed, optimize=optimize)["y"]
            assert found.dtype == np.float32
            # ONNX Runtime may keep float32 between nodes: one rounding more or less, at the size of the largest value.
            np.testing.assert_allclose(found, expected, rtol=0, atol=2 * 2.0**-11 * max(np.abs(expected).max(), 1))


def test_inputs_and_outputs_keep_their_names_and_types():
    graph = model("float[4,8] x, int64[4] i", "float[4,8] y, float[4,8] z", "y = Relu(x)  z = Gather(y, i)")
    feeds = [{**row, "i": np.arange(4)} for row in rows({"x": (4, 8)})]
    result = convert(graph, feeds).model
    for ports, expected in (
        (result.graph.inputs, {"x": "FLOAT", "i": "INT64"}),
        (result.graph.outputs, {"y": "FLOAT", "z": "FLOAT"}),
    ):
        assert {value.name: value.dtype.name for value in ports} == expected


CASTS = [
    # One Cast in and one out, however many nodes lie between.
    ("y = Relu(x)", 2),
    ("a = Relu(x)  b = Neg(a)  y = Abs(b)", 2),
    # Two readers share one Cast.
    ("a = Relu(x)  b = Neg(x)  y = Add(a, b)", 2),
    # What moves values follows its neighbours: no Cast lies between it and a node of the same type.
    ("t = Transpose(x)  y = Relu(t)", 2),
    ("a = Relu(x)  t = Transpose(a)  y = Transpose(t)", 2),
    # Between nodes in float32 what moves values stays there: no Cast to half and back.
    ("r = Relu(x)  a = Exp(r)  t = Transpose(a)  u = Identity(t)  y = Exp(u)", 2),
    ("a = Exp(x)  t = Transpose(a)  b = Relu(t)  y = Neg(b)", 2),
    ("a = Relu(x)  e = Exp(a)  t = Transpose(e)  y = Relu(t)", 4),
]


@pytest.mark.parametrize(("body", "count"), CASTS)
def test_casts_are_as_few_as_the_types_need(body, count):
    square = {"x": (6, 6)}
    excluded = ["Exp"] if "Exp" in body else []
    graph = model("float[6,6] x", "float[6,6] y", body)
    result = convert(graph, rows(square), exclude_op_types=excluded)
    assert len(casts(result)) == count
    for node in casts(result):
        producer = node.inputs[0].producer()
        assert producer is None or producer.op_type != "Cast"


def test_a_model_in_which_nothing_is_left_is_an_error():
    graph = model("float[6,6] x", "float[6,6] y", "a = Exp(x)  y = Transpose(a)")
    with pytest.raises(ModelError, match=r"no node of the model can be in half precision: .* 1 of 2 nodes"):
        convert(graph, rows({"x": (6, 6)}), exclude_op_types=["Exp"])


def scaled(factor):
    return model(
        "float[2,4] x", "float[2,4] y", "a = Relu(x)  m = Mul(a, k)  d = Div(m, k)  y = Neg(d)", k=np.float32([factor])
    )


@pytest.mark.parametrize(("largest", "nodes"), [(65504.0, {}), (65520.0, {"m", "d"})])
def test_what_passes_the_largest_half_is_computed_in_float32(largest, nodes):
    feeds = [{"x": np.full((2, 4), 1, np.float32)}, {"x": np.full((2, 4), largest / 1024, np.float32)}]
    result = convert(scaled(1024), feeds)
    assert set(kept(result)) == set(nodes)
    assert all(f"m reaches {largest:.4g}, past 65504" in reason for reason in kept(result).values())
    np.testing.assert_allclose(ort_cpu.run(result.model, feeds[1])["y"], -feeds[1]["x"], rtol=2e-3)


def test_every_row_is_seen_once():
    seen, steps = [], []
    feeds = rows({"x": (2, 4)}, count=5)
    stream = (seen.append(i) or feed for i, feed in enumerate(feeds))
    float16.convert(scaled(2), QuantConfig.from_dict(HALF), stream, progress=lambda: steps.append(1))
    assert seen == [0, 1, 2, 3, 4] and len(steps) == 5


@pytest.mark.parametrize(
    ("constant", "reason"),
    [
        (-3.4028235e38, "constant k reaches 3.403e+38, past 65504"),
        (65505.0, "constant k reaches 6.55e+04, past 65504"),
        (1e-5, "constant k stays below 6.1e-05 (1e-05)"),
        (2.0**-14, None),
        (65504.0, None),
        (-np.inf, None),
        (0.0, None),
    ],
)
def test_a_constant_that_half_precision_cannot_hold_keeps_its_reader(constant, reason):
    graph = model("float[2,4] x", "float[2,4] y", "a = Relu(x)  y = Max(a, k)", k=np.float32([constant]))
    assert kept(convert(graph, rows({"x": (2, 4)}))) == ({} if reason is None else {"y": reason})


def test_values_of_a_constant_that_become_zero_are_named():
    k = np.float32([1.0, 1e-9, 0.0, -(2.0**-26)])
    result = convert(model("float[2,4] x", "float[2,4] y", "y = Mul(x, k)", k=k), rows({"x": (2, 4)}))
    assert result.notes[1] == "half precision turns values of 1 constants into 0: k (2 of 4)"


@pytest.mark.parametrize(("largest", "stays"), [(2048, False), (2049, True)])
def test_what_becomes_an_index_is_exact(largest, stays):
    graph = model("float[4] x", "int64[4] y", "a = Floor(x)  y = Cast<to = 7>(a)")
    feeds = [{"x": np.float32([0, 1, 2, largest])}]
    if stays:
        with pytest.raises(ModelError, match="a reaches 2049, past 2048"):
            convert(graph, feeds)
    else:
        np.testing.assert_array_equal(ort_cpu.run(convert(graph, feeds).model, feeds[0])["y"], [0, 1, 2, 2048])


def test_what_decides_a_count_is_computed_in_float32():
    graph = model("float[4,4] x, float[2] a", "y", "t = Mul(a, a)  n = Cast<to=7>(t)  c = Exp(x)  y = Tile(c, n)")
    result = convert(graph, [{"x": np.ones((4, 4), np.float32), "a": np.ones(2, np.float32)}])
    assert kept(result)["t"] == "decides a branch, a count or a shape" and "c" in result.nodes


@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ({"exclude_op_types": ["Mul"]}, {"m"}),
        ({"exclude_nodes": ["a", "y"]}, {"a", "y"}),
        ({"op_types": ["Relu", "Neg"]}, {"m", "d"}),
        ({"nodes": ["a"]}, {"m", "d", "y"}),
    ],
)
def test_the_settings_keep_nodes_in_float32(settings, nodes):
    result = convert(scaled(2), rows({"x": (2, 4)}), **settings)
    assert {row.node for row in result.kept if row.kind == "asked"} == nodes
    assert f"{len(nodes)} as the settings ask" in result.notes[0]


def test_a_name_that_is_not_in_the_model_is_an_error():
    with pytest.raises(SettingsError, match="no operator 'Mull'; did you mean Mul"):
        convert(scaled(2), rows({"x": (2, 4)}), exclude_op_types=["Mull"])


FORMS = [
    ("s = Shape(x)  c = ConstantOfShape(s)  y = Add(x, c)", {}, set()),
    ("s = Shape(x)  c = ConstantOfShape<value = float[1] {0.5}>(s)  y = Add(x, c)", {}, set()),
    ("i = Cast<to = 7>(x)  f = Cast<to = 1>(i)  y = Add(x, f)", {}, set()),
    ("n = LayerNormalization(x, g)  y = Relu(n)", {"g": np.ones(8, np.float32)}, set()),
    ("r = RandomNormalLike<dtype = 1, seed = 1.0>(x)  z = Sub(r, r)  y = Add(x, z)", {}, {"r"}),
    (
        "r = Relu(x)  y = If(t) <then_branch = a () => (float[4,8] p) { p = Neg(r) }, "
        "else_branch = b () => (float[4,8] q) { q = Abs(r) }>",
        {"t": np.array(True)},
        {"y"},
    ),
]


@pytest.mark.parametrize(("body", "weights", "nodes"), FORMS)
def test_types_that_attributes_and_bodies_state_stay_consistent(body, weights, nodes):
    graph, feeds = model("float[4,8] x", "float[4,8] y", body, **weights), rows({"x": (4, 8)})
    result = convert(graph, feeds)
    assert set(kept(result)) == nodes
    expected = ort_cpu.run(graph, feeds[0])["y"]
    np.testing.assert_allclose(ort_cpu.run(result.model, feeds[0])["y"], expected, rtol=4e-3, atol=4e-3)


def test_an_input_that_is_defined_as_float32_stays_so():
    scales = np.float32([1, 1, 2, 2])
    graph = model("float[1,2,4,4] x", "float[1,2,8,8] y", "a = Relu(x)  y = Resize(a, , s)", s=scales)
    result = convert(graph, rows({"x": (1, 2, 4, 4)}))
    resize = next(node for node in result.model.graph if node.op_type == "Resize")
    assert [value.dtype.name for value in resize.inputs if value is not None] == ["FLOAT16", "FLOAT"]


def test_a_constant_that_both_types_read_is_there_in_both():
    graph = model("float[2,4] x", "float[2,4] y", "a = Add(x, k)  y = Mul(a, k)", k=np.float32([0.1]))
    result = convert(graph, rows({"x": (2, 4)}), exclude_nodes=["y"])
    assert sorted(value.dtype.name for value in result.model.graph.initializers.values()) == ["FLOAT", "FLOAT16"]


@pytest.mark.parametrize(("arch", "count"), [("v68", 0), ("v69", 2), ("v73", 2)])
def test_an_npu_that_computes_float32_in_half_cannot_take_what_must_stay(arch, count):
    graph = scaled(1e6)
    result = convert(graph, [{"x": np.ones((2, 4), np.float32)}])
    found = float16.violations(result.model, result.kept, load_target("qnn", arch=arch))
    assert [violation.code for violation in found] == ["T112"] * count
    assert float16.violations(result.model, result.kept, load_target("cpu")) == ()
