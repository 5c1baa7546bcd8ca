"""Models in the form that Rockchip's compiler reads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.backends.base import Device
from intact.backends.rknn import client
from intact.backends.rknn.backend import RknnSimulator, platform_of
from intact.backends.rknn.readable import OPSET, readable
from intact.backends.rknn.toolchain import TOOLCHAIN
from intact.model import io
from intact.runtime import ort_cpu, toolchains
from intact.targets.registry import load_target
from tests.builder import Net

RNG = np.random.default_rng(0)
STEP, ZERO = 0.05, np.int8(-1)


def layer(net, x, *, on_grid):
    """A convolution of 16 channels, in integers or in float."""
    levels = RNG.integers(-127, 128, (16, 16, 1, 1)).astype(np.int8)
    if not on_grid:
        return net.op("Conv", x, (levels * 0.01).astype(np.float32))
    weight = net.dequantize(levels, np.full(16, 0.01), np.zeros(16, np.int8), axis=0)
    return net.qdq(net.op("Conv", x, weight), STEP, ZERO)


def shared(other):
    """A tensor on a grid that a layer in integers reads, and another reader, or none: the model returns it."""
    net = Net("shared")
    grid = layer(net, net.qdq(net.input("x", (1, 16, 8, 8)), STEP, ZERO), on_grid=True)
    integers = layer(net, grid, on_grid=True)
    return net.normalized(integers, grid if other is None else other(net, grid))


def in_float(net, grid):
    return layer(net, grid, on_grid=False)


def moved(net, grid):
    return net.op("Sigmoid", grid)


def summed(net, grid):
    """A sum with a float, which goes on both to a grid and in float."""
    total = net.op("Add", grid, layer(net, grid, on_grid=False))
    return net.op("Add", total, layer(net, net.qdq(total, STEP, ZERO), on_grid=True))


def in_integers(net, grid):
    return layer(net, grid, on_grid=True)


def dequantizers(model):
    """How many nodes bring the shared integers back, and by how many nodes each is read."""
    found = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    by_source = [[node for node in found if node.inputs[0] is each.inputs[0]] for each in found]
    most = max(by_source, key=lambda nodes: (len(nodes), sum(len(node.outputs[0].uses()) for node in nodes)))
    return sorted(len(node.outputs[0].uses()) for node in most)


@pytest.mark.parametrize(
    ("other", "uses"), [(in_float, [1, 1]), (moved, [1, 1]), (summed, [1, 2]), (None, [0, 1]), (in_integers, [2])]
)
def test_readers_in_integers_and_others_share_no_node_and_the_numbers_stay(other, uses):
    model = shared(other)
    found = readable(model)
    assert found.opset_imports[""] <= OPSET and dequantizers(found) == uses
    feeds = {"x": RNG.standard_normal((1, 16, 8, 8)).astype(np.float32)}
    expected, got = ort_cpu.run(model, feeds), ort_cpu.run(found, feeds)
    assert expected.keys() == got.keys() and all(np.array_equal(expected[name], got[name]) for name in expected)


def with_bias(op, dtype):
    """A layer in integers whose bias is on a grid of `dtype`."""
    net = Net("bias")
    x = net.qdq(net.op("Relu", net.input("x", (1, 16, 4, 4) if op == "Conv" else (1, 16))), STEP, ZERO)
    levels = RNG.integers(-127, 128, (16, 16, 1, 1) if op == "Conv" else (16, 16)).astype(np.int8)
    scales = np.linspace(0.01, 0.02, 16)
    weight = net.dequantize(levels, scales, np.zeros(16, np.int8), axis=0 if op == "Conv" else 1)
    bias = net.dequantize(RNG.integers(-100, 100, 16).astype(dtype), scales * STEP, np.zeros(16, dtype), axis=0)
    return net.normalized(net.qdq(net.op(op, x, weight, bias), STEP, ZERO))


@pytest.mark.parametrize("op", ["Conv", "Gemm"])
@pytest.mark.parametrize(("dtype", "left"), [(np.int32, 0), (np.int8, 1)])
def test_a_bias_of_32_bits_becomes_floats_that_compute_the_same(op, dtype, left):
    model = with_bias(op, dtype)
    found = readable(model)
    [layer] = [node for node in found.graph if node.op_type == op]
    assert (layer.inputs[2].producer() is not None) == bool(left)
    integers = [value for value in found.graph.initializers.values() if value.dtype.name == "INT32"]
    assert not integers
    feeds = {"x": RNG.standard_normal(model.graph.inputs[0].shape.numpy()).astype(np.float32)}
    [expected], [got] = ort_cpu.run(model, feeds).values(), ort_cpu.run(found, feeds).values()
    assert np.array_equal(expected, got) and np.unique(got).size > 10


@pytest.mark.skipif(toolchains.find(TOOLCHAIN) is None, reason=f"{TOOLCHAIN.package} is not installed")
@pytest.mark.slow
@pytest.mark.parametrize("other", [in_float, moved, summed, None, in_integers])
def test_the_compiler_takes_a_grid_with_readers_of_both_kinds(other, tmp_path):
    path = io.save(readable(shared(other)), tmp_path / "m.onnx")[0]
    platform = platform_of(Device.of(load_target("rknn"), 100.0, {}))
    found = client.compile_rknn(path, None, platform, timeout=100.0)
    assert found.error is None
    assert [layer.type for layer in found.report.layers if layer.kind == "Conv"].count("INT8") >= 2


def first_product(op, shape, weight_shape, *, moved=False, **attributes):
    """A product in integers at an input of a model, or behind a Reshape of it; a weight without a shape is one, too."""
    net = Net("product")
    x = net.qdq(net.input("x", (1, *shape) if moved else shape), STEP, ZERO)
    x = net.qdq(net.op("Reshape", x, np.array(shape)), STEP, ZERO) if moved else x
    if weight_shape is None:
        y = net.qdq(net.input("y", (*shape[:-2], shape[-1], 16)), STEP, ZERO)
    else:
        levels = RNG.integers(-127, 128, weight_shape).astype(np.int8)
        scales, axis = np.linspace(0.01, 0.02, 16), weight_shape.index(16)
        y = net.dequantize(levels, scales, np.zeros(16, np.int8), axis=axis)
    return net.normalized(net.qdq(net.op(op, x, y, **attributes), 4 * STEP, ZERO))


PRODUCTS = [
    (first_product("Gemm", (4, 32), (16, 32), transB=1), "Conv"),
    (first_product("Gemm", (4, 32), (32, 16)), "Conv"),
    (first_product("MatMul", (2, 4, 32), (32, 16), moved=True), "Conv"),
    (first_product("MatMul", (2, 4, 32), None), "MatMul"),
    (first_product("Gemm", (4, 32), None), "MatMul"),
    # One row, a scaled product, and four dimensions are taken as they are.
    (first_product("Gemm", (1, 32), (16, 32), transB=1), "Gemm"),
    (first_product("Gemm", (4, 32), (16, 32), transB=1, alpha=0.5), "Gemm"),
    (first_product("MatMul", (1, 2, 4, 32), (32, 16)), "MatMul"),
]


@pytest.mark.parametrize(("model", "form"), PRODUCTS)
def test_a_product_of_rows_at_an_input_has_a_form_that_the_compiler_ends_on(model, form):
    found = readable(model)
    assert [node.op_type for node in found.graph if node.op_type in ("Conv", "Gemm", "MatMul")] == [form]
    feeds = {value.name: RNG.uniform(-1, 1, value.shape.numpy()).astype(np.float32) for value in model.graph.inputs}
    [expected], [got] = ort_cpu.run(model, feeds).values(), ort_cpu.run(found, feeds).values()
    assert expected.shape == got.shape and np.abs(expected - got).max() <= 4.001 * STEP
    assert np.mean(expected != got) < 0.02


def test_a_product_behind_a_computation_stays():
    net = Net("behind")
    x = net.qdq(net.op("Relu", net.input("x", (4, 32))), STEP, ZERO)
    weight = net.dequantize(np.ones((32, 16), np.int8), np.full(16, 0.01), np.zeros(16, np.int8), axis=1)
    found = readable(net.normalized(net.qdq(net.op("Gemm", x, weight), STEP, ZERO)))
    assert "Conv" not in [node.op_type for node in found.graph]


@pytest.mark.rknn
def test_the_compiler_ends_on_products_at_inputs(tmp_path):
    platform = platform_of(Device.of(load_target("rknn"), 100.0, {}))
    path = io.save(readable(PRODUCTS[0][0]), tmp_path / "m.onnx")[0]
    found = client.compile_rknn(path, None, platform, timeout=60.0)
    assert found.error is None and {layer.type for layer in found.report.layers} == {"INT8"}


def turned(shape, perm, *, computed=False):
    """A Transpose in integers right behind an input, or behind a Relu of it."""
    net = Net("turned")
    x = net.input("x", shape)
    x = net.qdq(net.op("Relu", x) if computed else x, STEP, ZERO)
    return net.normalized(net.qdq(net.op("Transpose", x, perm=perm), STEP, ZERO))


@pytest.mark.parametrize(
    ("model", "rank", "grids"),
    [
        (turned((1, 64, 16), [0, 2, 1]), 4, 2),
        (turned((8, 4), [1, 0]), 4, 2),
        (turned((1, 17, 3, 4, 16), [2, 0, 3, 1, 4]), 4, 2),
        (turned((2, 17, 3, 4, 16), [2, 0, 3, 1, 4]), 5, 1),
        (turned((1, 2, 8, 4), [0, 2, 3, 1]), 4, 1),
        (turned((1, 64, 16), [0, 2, 1], computed=True), 3, 1),
    ],
)
def test_a_transpose_of_an_input_is_in_four_dimensions_and_the_numbers_stay(model, rank, grids):
    found = readable(model)
    [node] = [node for node in found.graph if node.op_type == "Transpose"]
    assert len(node.attributes["perm"].as_ints()) == rank
    assert sum(node.op_type == "QuantizeLinear" for node in found.graph) == grids
    feeds = {"x": RNG.uniform(-1, 1, model.graph.inputs[0].shape.numpy()).astype(np.float32)}
    [expected], [got] = ort_cpu.run(model, feeds).values(), ort_cpu.run(found, feeds).values()
    assert np.array_equal(expected, got)


@pytest.mark.rknn
def test_the_compiler_ends_on_a_transpose_of_an_input(tmp_path):
    platform = platform_of(Device.of(load_target("rknn"), 100.0, {}))
    for model in (turned((1, 64, 16), [0, 2, 1]), turned((1, 17, 3, 4, 16), [2, 0, 3, 1, 4])):
        path = io.save(readable(model), tmp_path / "m.onnx")[0]
        assert client.compile_rknn(path, None, platform, timeout=60.0).error is None


def moved_through(op, *rest, step=STEP, zero=ZERO, also=False, **attributes):
    """A move behind a layer, to a grid with this step and zero point; `also` has the model return it in float."""
    net = Net("moved")
    grid = layer(net, net.qdq(net.input("x", (1, 16, 4, 4)), STEP, ZERO), on_grid=True)
    found = net.op(op, grid, *rest, **attributes)
    outputs = [net.op("Relu", net.qdq(found, step, zero))]
    return net.normalized(*outputs, *([found] if also else []))


SHAPE = np.array([1, 4, 4, 16])
MOVES = [
    (moved_through("Reshape", SHAPE), True),
    (moved_through("Transpose", perm=[0, 2, 3, 1]), True),
    (moved_through("Slice", np.array([2]), np.array([9]), np.array([1])), True),
    (moved_through("Reshape", SHAPE, step=2 * STEP), False),
    (moved_through("Reshape", SHAPE, zero=np.int8(3)), False),
    (moved_through("Reshape", SHAPE, also=True), False),
]


@pytest.mark.parametrize(("model", "integers"), MOVES)
def test_a_move_within_one_grid_moves_the_integers(model, integers):
    found = readable(model)
    [node] = [node for node in found.graph if node.op_type in ("Reshape", "Transpose", "Slice")]
    assert (node.inputs[0].producer().op_type == "QuantizeLinear") == integers
    assert node.outputs[0].dtype == (ir.DataType.INT8 if integers else ir.DataType.FLOAT)
    feeds = {"x": RNG.standard_normal((1, 16, 4, 4)).astype(np.float32)}
    expected, got = ort_cpu.run(model, feeds), ort_cpu.run(found, feeds)
    assert all(np.array_equal(expected[name], got[name]) and np.unique(got[name]).size > 5 for name in expected)


def bent(*, on_grid=True):
    """A Tanh behind a layer, between grids or in front of one alone."""
    net = Net("bent")
    x = net.qdq(net.input("x", (1, 16, 4, 4)), STEP, ZERO)
    return net.normalized(net.qdq(net.op("Tanh", x if on_grid else net.op("Abs", x)), 1 / 128, np.int8(0)))


@pytest.mark.parametrize(("on_grid", "halves", "negations"), [(True, True, 2), (True, False, 0), (False, True, 0)])
def test_a_tanh_between_grids_is_computed_in_half_precision_where_a_chip_has_it(on_grid, halves, negations):
    model = bent(on_grid=on_grid)
    found = readable(model, halves=halves)
    assert [node.op_type for node in found.graph].count("Neg") == negations
    feeds = {"x": RNG.uniform(-4, 4, (1, 16, 4, 4)).astype(np.float32)}
    [expected], [got] = ort_cpu.run(model, feeds).values(), ort_cpu.run(found, feeds).values()
    assert np.array_equal(expected, got) and np.unique(got).size > 20


@pytest.mark.rknn
@pytest.mark.parametrize(("soc", "most"), [("rk3588", 1.001), ("rv1106", 2.5)])
def test_a_tanh_of_every_input_of_eight_bits_is_within_a_step_of_the_cpu(soc, most, tmp_path):
    """RV1106 has no half precision: there the compiler looks it up."""
    scale, zero = 0.03, np.int8(-20)
    net = Net("every")
    x = net.qdq(net.input("x", (1, 16, 4, 4)), scale, zero)
    model = net.normalized(net.qdq(net.op("Tanh", x), 2 / 255, np.int8(0)))
    device = Device.of(load_target("rknn", soc=soc), 100.0, {})
    path = io.save(model, tmp_path / "m.onnx")[0]
    feeds = {"x": ((np.arange(-128, 128) - zero) * scale).astype(np.float32).reshape(1, 16, 4, 4)}
    [expected] = ort_cpu.run(model, feeds).values()
    [got] = RknnSimulator().run(path, [feeds], device)[0].values()
    assert np.abs(got - expected).max() / (2 / 255) <= most


def squashed(reach, *, swish=False, layer=False):
    """A Sigmoid between grids, of which the one in front reaches so far, alone or times its own input."""
    net = Net("squashed")
    x = net.qdq(net.input("x", (1, 16, 4, 4)), reach / 128, np.int8(0))
    if layer:
        same = 127 * np.eye(16, dtype=np.int8)[:, :, None, None]
        kept = net.dequantize(same, np.full(16, 1 / 127), np.zeros(16, np.int8), axis=0)
        x = net.qdq(net.op("Conv", x, kept, kernel_shape=[1, 1]), reach / 128, np.int8(0))
    y = net.qdq(net.op("Sigmoid", x), 1 / 256, np.int8(-128))
    return net.normalized(net.qdq(net.op("Mul", x, y), reach / 256, np.int8(-100)) if swish else y)


@pytest.mark.parametrize(
    ("reach", "around", "halves", "turns"),
    [
        (7.0, {}, True, 0),
        (7.1, {}, True, 1),
        (7.1, {"swish": True}, True, 0),
        (7.1, {"layer": True}, True, 0),
        (7.1, {}, False, 0),
    ],
)
def test_a_sigmoid_behind_a_grid_that_reaches_far_is_computed_in_half_precision(reach, around, halves, turns):
    model = squashed(reach, **around)
    found = readable(model, halves=halves)
    assert [node.op_type for node in found.graph].count("Neg") == turns
    feeds = {"x": RNG.uniform(-8, 8, (1, 16, 4, 4)).astype(np.float32)}
    [expected], [got] = ort_cpu.run(model, feeds).values(), ort_cpu.run(found, feeds).values()
    assert np.abs(expected - got).max() <= turns * 1.001 / 256 and np.unique(got).size > 20


@pytest.mark.rknn
@pytest.mark.parametrize(
    ("soc", "reach", "layer", "most"),
    [
        ("rk3588", 7.0, False, 1),
        ("rk3588", 8.0, False, 1),
        ("rk3588", 8.0, True, 1),
        ("rv1106", 7.0, False, 1),
        ("rv1106", 8.0, False, 2),
        ("rv1106", 8.0, True, 1),
        ("rv1106", 40.0, True, 1),
    ],
)
def test_a_sigmoid_of_every_input_of_eight_bits_is_within_a_step_of_the_cpu(soc, reach, layer, most, tmp_path):
    """RV1106 has no half precision, and a coarse table beyond 7 where no convolution is in front."""
    model = squashed(reach, layer=layer)
    device = Device.of(load_target("rknn", soc=soc), 100.0, {})
    path = io.save(model, tmp_path / "m.onnx")[0]
    feeds = {"x": (np.arange(-128, 128) * reach / 128).astype(np.float32).reshape(1, 16, 4, 4)}
    [expected] = ort_cpu.run(model, feeds).values()
    [got] = RknnSimulator().run(path, [feeds], device)[0].values()
    assert round(float(np.abs(got - expected).max()) * 256, 1) <= most
