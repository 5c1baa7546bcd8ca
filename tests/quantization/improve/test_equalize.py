"""Scales that move between layers: where the walk back folds them, where it refuses, and that the function stays."""

from __future__ import annotations

import importlib

import numpy as np
import onnx_ir as ir
import pytest

from intact.quantization import quantizing
from intact.quantization.calibration import observe
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.fold import find_fold
from intact.quantization.improve.migrate import migrate
from intact.quantization.improve.scale_labels import reshaped
from intact.quantization.improve.scores import ScoreProduct
from intact.quantization.improve.site import Layers, Reader, layers_of
from intact.runtime import ort_cpu
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import assert_the_rest_is_the_same, model, quantized

IMPROVE = importlib.import_module("intact.quantization.improve")

F = np.float32
RNG = np.random.default_rng(5)
SHAPES = {"split": [1, 6, 2, 4], "merged": [1, 6, 8], "three": [1, 6, 3, 2, 4]}
ATTENTION = """
    {values}
    scores = MatMul(q, k)  p = Softmax(scores)  c = MatMul(p, v)
    ct = Transpose<perm=[0,2,1,3]>(c)  h = Reshape(ct, merged)  y = MatMul(h, wo)
"""
SEPARATE = """
    mv = MatMul(x, wv)  bv1 = Add(bv, mv)  rv = Reshape(bv1, split)  v = Transpose<perm=[0,2,1,3]>(rv)
    mq = MatMul(x, wq)  bq1 = Add(mq, bq)  rq = Reshape(bq1, split)  q = Transpose<perm=[0,2,1,3]>(rq)
    mk = MatMul(x, wk)  rk = Reshape(mk, split)  tk = Transpose<perm=[0,2,3,1]>(rk)  k = Mul(tk, half)
"""
GATHERED = """
    m = MatMul(x, w3)  b = Add(m, b3)  r = Reshape(b, three)  t = Transpose<perm=[2,0,3,1,4]>(r)
    q = Gather<axis=0>(t, i0)  kk = Gather<axis=0>(t, i1)  v = Gather<axis=0>(t, i2)  k = Transpose<perm=[0,1,3,2]>(kk)
"""
SPLIT = """
    m = MatMul(x, w3)  b = Add(m, b3)  qf, kf, vf = Split<axis=2, num_outputs=3>(b)
    rq = Reshape(qf, split)  q = Transpose<perm=[0,2,1,3]>(rq)  rk = Reshape(kf, split)
    k = Transpose<perm=[0,2,3,1]>(rk)  rv = Reshape(vf, split)  v = Transpose<perm=[0,2,1,3]>(rv)
"""


def normal(*shape):
    return RNG.standard_normal(shape).astype(F)


def attention(values, **more):
    weights = {"wv": normal(8, 8), "bv": normal(8), "wq": normal(8, 8), "bq": normal(8), "wk": normal(8, 8)}
    weights |= {"w3": normal(8, 24), "b3": normal(24), "wo": normal(8, 8), "half": F(0.5)}
    weights |= {name: np.array(shape) for name, shape in SHAPES.items()} | {f"i{i}": np.array(i) for i in range(3)}
    body = ATTENTION.format(values=values)
    used = {name: array for name, array in {**weights, **more}.items() if f"{name})" in body or f"{name}," in body}
    return model("float[1,6,8] x", "float[1,6,8] y", body, **used)


def convolutions(between="r = Relu(c)", reader="y = Conv(r, w2, b2)", outputs="float[1,5,6,6] y", **more):
    weights = {"w1": normal(4, 3, 3, 3), "b1": normal(4), "w2": normal(5, 4, 1, 1), "b2": normal(5)} | more
    body = f"c = Conv<pads=[1,1,1,1]>(x, w1, b1)  {between}  {reader}"
    return model("float[1,3,6,6] x", outputs, body, **{name: a for name, a in weights.items() if name in body})


def last_layers(net) -> Layers:
    return layers_of(net, quantizing.plan(net, load_target("cpu"), QuantConfig()))[-1]


def same_function(net, changed):
    shape = tuple(int(dim) for dim in net.graph.inputs[0].shape)
    for _ in range(3):
        row = {"x": normal(*shape)}
        np.testing.assert_allclose(ort_cpu.run(changed, row)["y"], ort_cpu.run(net, row)["y"], atol=1e-4, rtol=1e-4)


FOLDS = {
    "convolutions": convolutions,
    "a leaky activation": lambda: convolutions("r = LeakyRelu<alpha=0.1>(c)"),
    "a slope for each channel": lambda: convolutions("r = PRelu(c, slope)", slope=normal(4, 1, 1)),
    "nothing between": lambda: convolutions("", "y = Conv(c, w2, b2)"),
    "a pool": lambda: convolutions("d = Relu(c)  r = MaxPool<kernel_shape=[1,1]>(d)"),
    "a constant before": lambda: convolutions("d = Add(c, a)  r = Relu(d)", a=normal(4, 1, 1)),
    "a depthwise layer": lambda: convolutions(
        "", "y = Conv<group=4>(c, w4)", "float[1,4,6,6] y", w4=normal(4, 1, 1, 1)
    ),
    "groups": lambda: convolutions("", "y = Conv<group=2>(c, w6)", "float[1,6,6,6] y", w6=normal(6, 2, 1, 1)),
    "a concatenation": lambda: convolutions(
        "d = Conv(x, w3)  e = Concat<axis=1>(c, d)  r = Relu(e)",
        "y = Conv(r, w7)",
        w3=normal(2, 3, 1, 1),
        w7=normal(5, 6, 1, 1),
    ),
    "a matrix behind a pool": lambda: convolutions(
        "g = GlobalAveragePool(c)  r = Flatten(g)", "y = Gemm<transB=1>(r, w8)", "float[1,5] y", w8=normal(5, 4)
    ),
    "values and output of attention": lambda: attention(SEPARATE),
    "gathered parts of one product": lambda: attention(GATHERED),
    "split parts of one product": lambda: attention(SPLIT),
}


@pytest.mark.parametrize("build", FOLDS.values(), ids=FOLDS)
def test_dividing_before_and_multiplying_behind_keeps_the_function(build):
    net = build()
    changed = net.clone()
    layers = last_layers(changed)
    fold = find_fold(layers.source, layers.labels, layers.nodes)
    assert fold is not None
    scales, editor = RNG.uniform(0.2, 5.0, layers.channels), Editor(changed)
    before = _value(net, layers.source.name)
    editor.divide(fold, scales)
    for reader in (Reader.of(node, weight) for node, weight in layers.readers):
        editor.replace(reader.node, reader.plan.index, reader.multiplied(scales))
    expected = before / scales.reshape(layers.labels.shape)
    np.testing.assert_allclose(_value(changed, layers.source.name), expected, atol=1e-4, rtol=1e-4)
    same_function(net, changed)


def _value(net, name):
    shape = tuple(int(dim) for dim in net.graph.inputs[0].shape)
    row = {"x": np.random.default_rng(1).standard_normal(shape).astype(F)}
    return ort_cpu.Session(net, outputs=[name]).run(row)[name]


REFUSALS = {
    "a limit that is no limit any more": lambda: convolutions("r = Clip(c, low, high)", low=F(0), high=F(6)),
    "a curve": lambda: convolutions("r = Sigmoid(c)"),
    "another reader": lambda: convolutions("r = Relu(c)  z = Sigmoid(r)", outputs="float[1,5,6,6] y, float[1,4,6,6] z"),
    "an output of the graph": lambda: convolutions(outputs="float[1,5,6,6] y, float[1,4,6,6] r"),
    "a weight that is computed": lambda: convolutions("w = Relu(w1)  d = Conv<pads=[1,1,1,1]>(x, w)  r = Add(c, d)"),
    "a sum of a tensor with itself": lambda: convolutions("r = Add(c, c)"),
    "an input": lambda: model("float[1,4,6,6] x", "float[1,5,6,6] y", "y = Conv(x, w)", w=normal(5, 4, 1, 1)),
}


@pytest.mark.parametrize("build", REFUSALS.values(), ids=REFUSALS)
def test_scales_do_not_fold_through(build):
    layers = last_layers(build())
    assert find_fold(layers.source, layers.labels, layers.nodes) is None


def test_parts_that_overlap_are_not_divided():
    body = GATHERED.replace("Gather<axis=0>(t, i0)", "Gather<axis=0>(t, i2)")
    layers = last_layers(attention(body))
    assert find_fold(layers.source, layers.labels, layers.nodes) is None


@pytest.mark.parametrize(
    ("before", "after", "labelled"),
    [
        ((1, 6, 8), (1, 6, 2, 4), (2, 3)),
        ((1, 6, 2, 4), (1, 6, 8), (2,)),
        ((1, 6, 2, 4), (6, 8), (1,)),
        ((2, 6, 4), (1, 2, 6, 4, 1), (1, 3)),
        ((3, 4), (12,), (0,)),
        ((1, 5, 1, 1), (1, 5), (1,)),
    ],
)
def test_labels_follow_a_reshape(before, after, labelled):
    shape = [size if axis in labelled else 1 for axis, size in enumerate(after)]
    labels = np.arange(int(np.prod(shape))).reshape(shape)
    found = reshaped(labels, before, after)
    assert np.array_equal(np.broadcast_to(found, before).reshape(after), np.broadcast_to(labels, after))


def test_labels_do_not_follow_a_reshape_of_unknown_sizes():
    n, m = ir.SymbolicDim("n"), ir.SymbolicDim("m")
    assert reshaped(np.arange(8).reshape(1, 1, 8), (n, 2, 4), (n, 1, 8)).shape == (1, 2, 4)
    assert reshaped(np.arange(8).reshape(1, 8), (m, 4), (n, 8)) is None


UNEVEN = np.geomspace(1, 200, 16).astype(F)


def uneven_convolutions():
    # Later weights are small where values are large: all channels matter alike, but one grid fits only the largest.
    w1 = normal(16, 3, 3, 3) * UNEVEN[:, None, None, None]
    w2 = normal(8, 16, 1, 1) / UNEVEN[None, :, None, None]
    body = "c = Conv<pads=[1,1,1,1]>(x, w1, b1)  r = Relu(c)  y = Conv(r, w2)"
    return model("float[1,3,8,8] x", "float[1,8,8,8] y", body, w1=w1, b1=normal(16) * UNEVEN, w2=w2)


@pytest.mark.parametrize("per_channel", [True, False])
def test_uneven_channels_between_layers_are_evened_out(per_channel):
    net, rows = uneven_convolutions(), [{"x": normal(1, 3, 8, 8)} for _ in range(8)]
    settings = QuantConfig(per_channel=per_channel)
    found = migrate(net, quantizing.plan(net, load_target("cpu"), settings), rows, by_nodes=False)
    assert [tensor for _, tensor in found.moved] == ["r"] and found.notes()[0].startswith("equalization: ")
    same_function(net, found.model)
    assert_the_rest_is_the_same(net, found, rows[0])
    others = [{"x": normal(1, 3, 8, 8)} for _ in range(4)]
    fast, better = (quantized(net, rows, effort=e, per_channel=per_channel).model for e in ("fast", "normal"))
    assert _ratio(net, better, others) > _ratio(net, fast, others) + 6


def test_layers_are_studied_in_the_run_that_looks_at_moved_channels(monkeypatch):
    runs, watch = [], observe.watch
    monkeypatch.setattr(observe, "watch", lambda *a, **k: runs.append("observe") or watch(*a, **k))
    monkeypatch.setattr(IMPROVE, "watch", lambda *a, **k: runs.append("study") or watch(*a, **k))
    for net, size, expected in (
        (uneven_convolutions(), 8, ["observe", "observe"]),
        (convolutions(), 6, ["observe", "study"]),
    ):
        runs.clear()
        quantized(net, [{"x": normal(1, 3, size, size)} for _ in range(8)], effort="normal")
        assert runs == expected


def test_a_tensor_whose_range_is_given_is_left_alone():
    net, rows = uneven_convolutions(), [{"x": normal(1, 3, 8, 8)} for _ in range(8)]
    settings = QuantConfig.from_dict({"overrides": {"r": {"low": 0.0, "high": 400.0}}})
    assert migrate(net, quantizing.plan(net, load_target("cpu"), settings), rows, by_nodes=False).moved == ()


def test_even_channels_are_left_alone():
    net = convolutions()
    rows = [{"x": normal(1, 3, 6, 6)} for _ in range(8)]
    found = migrate(net, quantizing.plan(net, load_target("cpu"), QuantConfig()), rows, by_nodes=False)
    assert found.model is net and found.moved == ()


def test_queries_and_keys_are_evened_out_and_keep_their_product():
    uneven = np.geomspace(0.1, 10, 8).astype(F)
    net = attention(SEPARATE, wq=normal(8, 8) * uneven * F(0.2), bq=normal(8) * uneven, wk=normal(8, 8) / uneven)
    rows = [{"x": normal(1, 6, 8)} for _ in range(8)]
    found = migrate(net, quantizing.plan(net, load_target("cpu"), QuantConfig()), rows, by_nodes=False)
    result = found.model
    assert "scores" in [tensor for _, tensor in found.moved]
    same_function(net, result)
    assert_the_rest_is_the_same(net, found, rows[0])
    q, k = (
        [_spread(graph, name, axes, rows) for graph in (net, result)] for name, axes in (("q", (0, 2)), ("k", (0, 3)))
    )
    assert q[1] < q[0] / 3 and k[1] < k[0] / 3


def _spread(net, name, axes, rows):
    """How many times the largest channel of a tensor is larger than the smallest."""
    session = ort_cpu.Session(net, outputs=[name])
    reach = np.max([np.abs(session.run(row)[name]).max(axis=axes) for row in rows], axis=0)
    return reach.max() / reach.min()


def test_queries_and_keys_on_one_grid_with_values_are_left_alone():
    net = attention(GATHERED)
    (scores,) = [node for node in net.graph if node.outputs[0].name == "scores"]
    assert ScoreProduct.of(scores, quantizing.plan(net, load_target("cpu"), QuantConfig())) is not None
    assert ScoreProduct.of(scores, quantizing.plan(net, load_target("qnn"), QuantConfig())) is None


def _ratio(net, result, rows):
    pairs = [(ort_cpu.run(net, row)["y"].astype(float), ort_cpu.run(result, row)["y"].astype(float)) for row in rows]
    return 10 * np.log10(sum(np.sum(a**2) for a, _ in pairs) / sum(np.sum((a - b) ** 2) for a, b in pairs))
