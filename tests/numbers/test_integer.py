"""The reference agrees with the kernels of ONNX Runtime, without its optimizations, in every integer."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from intact.numbers import integer
from intact.numbers.integer_types import limits
from intact.runtime import ort_cpu
from tests.kernels import exact

KINDS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]
GROUPS = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]


def kernel(op, inputs, feeds, domain="", **attributes):
    """One operator in ONNX Runtime; inputs that are not fed are constants, None is an absent one."""
    names = [name if value is not None else "" for name, value in inputs.items()]
    while not names[-1]:
        names.pop()
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(inputs[k].dtype), inputs[k].shape)
            for k in feeds
        ],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in inputs.items() if k not in feeds and v is not None],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    return ort_cpu.Session(exact(model)).run({name: inputs[name] for name in feeds})["y"]


def whole(rng, dtype, shape):
    low, high = limits(np.dtype(dtype).name)
    return rng.integers(low, high + 1, shape).astype(dtype)


def geometry(spatial):
    return [
        {},
        {"pads": [1] * spatial + [2] * spatial, "dilations": [2] * spatial},
        {"auto_pad": "SAME_UPPER", "strides": [2] * spatial},
        {"auto_pad": "SAME_LOWER", "strides": [2] * spatial},
        {"auto_pad": "VALID", "strides": [3] + [1] * (spatial - 1)},
    ]


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize(("group", "multiplier"), GROUPS)
@pytest.mark.parametrize(("act", "wt"), KINDS)
def test_qlinear_conv_equals_the_kernel(act, wt, group, multiplier, spatial):
    rng = np.random.default_rng(group * 10 + spatial)
    channels = 8 * multiplier if group > 1 else 6
    for attributes, per_channel, biased in zip(geometry(spatial), (1, 0, 1, 0, 1), (1, 1, 0, 0, 1), strict=True):
        count = (channels,) if per_channel else ()
        inputs = {
            "x": whole(rng, act, (2, 8, *(7,) * spatial)),
            "xs": np.float32(0.02),
            "xz": whole(rng, act, ()),
            "w": whole(rng, wt, (channels, 8 // group, *(3,) * spatial)),
            "ws": rng.uniform(0.005, 0.015, count).astype(np.float32),
            "wz": whole(rng, wt, count),
            "ys": np.float32(1.3),
            "yz": whole(rng, act, ()),
            "b": rng.integers(-3000, 3000, channels).astype(np.int32) if biased else None,
        }
        expected = kernel("QLinearConv", inputs, ["x"], group=group, **attributes)
        found = integer.qlinear_conv(*inputs.values(), group=group, **attributes)
        np.testing.assert_array_equal(found, expected, err_msg=str(attributes))


@pytest.mark.parametrize("spatial", [1, 2, 3])
# Of int8 by uint8 the kernel multiplies the weight by the activations: uint8 × int8, with no other type to choose.
@pytest.mark.parametrize(("act", "wt"), [*KINDS, pytest.param(np.int8, np.uint8, marks=pytest.mark.vnni)])
def test_conv_integer_equals_the_kernel(act, wt, spatial):
    rng = np.random.default_rng(spatial)
    x, w = whole(rng, act, (1, 4, *(6,) * spatial)), whole(rng, wt, (8, 2, *(3,) * spatial))
    inputs = {"x": x, "w": w, "xz": whole(rng, act, ()), "wz": whole(rng, wt, ())}
    expected = kernel("ConvInteger", inputs, ["x"], group=2, pads=[1] * 2 * spatial)
    np.testing.assert_array_equal(integer.conv_integer(*inputs.values(), group=2, pads=[1] * 2 * spatial), expected)


def test_a_convolution_is_the_sum_of_its_products():
    x, w = np.array([[[1, 2, 3, 4]]], np.uint8), np.array([[[1, 10, 100]], [[0, 1, 0]]], np.int8)
    found = integer.conv_integer(x, w, 1, [0, 1], np.array([0, 5], np.int32), pads=[1, 0])
    # x − 1 = 0 1 2 3, padded with 0 in front; the second kernel minus its zero point is −1 0 −1.
    assert found.tolist() == [[[100, 210, 321], [5 - 1, 5 - 2, 5 - 4]]]


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("shapes", [((5, 16), (16, 7)), ((2, 3, 5, 16), (16, 7)), ((2, 5, 16), (2, 16, 7))])
@pytest.mark.parametrize(("act", "wt"), KINDS)
def test_qlinear_matmul_equals_the_kernel(act, wt, shapes, per_column):
    rng = np.random.default_rng(len(shapes[0]))
    a, b = (whole(rng, dtype, shape) for dtype, shape in zip((act, wt), shapes, strict=True))
    count = () if not per_column else (7,) if b.ndim == 2 else (2, 1, 7)
    inputs = {
        "a": a,
        "as": np.float32(0.03),
        "az": whole(rng, act, ()),
        "b": b,
        "bs": rng.uniform(0.005, 0.015, count).astype(np.float32),
        "bz": whole(rng, wt, count),
        "ys": np.float32(0.9),
        "yz": whole(rng, act, ()),
    }
    expected = kernel("QLinearMatMul", inputs, ["a"])
    np.testing.assert_array_equal(integer.qlinear_matmul(*inputs.values()), expected)
    whole_inputs = {name: inputs[name] for name in ("a", "b", "az", "bz")}
    sums = kernel("MatMulInteger", whole_inputs, ["a"])
    np.testing.assert_array_equal(integer.matmul_integer(*whole_inputs.values()), sums)


def test_zero_points_per_row_belong_to_the_rows_of_a():
    a, b = np.array([[1, 2], [3, 4]], np.uint8), np.eye(2, dtype=np.int8)
    assert integer.matmul_integer(a, b, np.array([1, 3], np.uint8)).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("alpha", [1.0, 0.37])
@pytest.mark.parametrize(("transA", "transB"), [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("to_float", [False, True])
def test_qgemm_equals_the_kernel(alpha, transA, transB, to_float):
    rng = np.random.default_rng(0)
    inputs = {
        "a": whole(rng, np.uint8, (16, 5) if transA else (5, 16)),
        "as": np.float32(0.02),
        "az": np.uint8(120),
        "b": whole(rng, np.int8, (7, 16) if transB else (16, 7)),
        "bs": rng.uniform(0.001, 0.01, 7).astype(np.float32),
        "bz": rng.integers(-5, 5, 7).astype(np.int8),
        "c": rng.integers(-999, 999, 7).astype(np.int32),
        "ys": None if to_float else np.float32(0.3),
        "yz": None if to_float else np.array(99, np.uint8),
    }
    attributes = {"alpha": alpha, "transA": transA, "transB": transB}
    expected = kernel("QGemm", inputs, ["a"], "com.microsoft", **attributes)
    found = integer.qgemm(*inputs.values(), **attributes)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if to_float else 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("op", "reference"), [("QLinearAdd", "qlinear_add"), ("QLinearMul", "qlinear_mul")])
def test_elementwise_operators_equal_the_kernel_for_every_pair_of_bytes_ties_included(op, reference, dtype):
    low, _ = limits(np.dtype(dtype).name)
    levels = np.arange(low, low + 256)
    a, b = np.repeat(levels, 256).astype(dtype), np.tile(levels, 256).astype(dtype)
    for scales in itertools.product((0.1, 0.7), (0.1, 0.03), (0.2, 0.06)):
        sa, sb, sc = (np.float32(scale) for scale in scales)
        za, zb, zc = (np.array(low + offset, dtype) for offset in (37, 130, 99))
        inputs = {"a": a, "as": sa, "az": za, "b": b, "bs": sb, "bz": zb, "cs": sc, "cz": zc}
        expected = kernel(op, inputs, ["a", "b"], "com.microsoft")
        np.testing.assert_array_equal(getattr(integer, reference)(*inputs.values()), expected, err_msg=str(scales))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 1])
def test_quantize_and_dequantize_equal_the_kernels(dtype, axis):
    rng = np.random.default_rng(0)
    count = () if axis is None else (3,)
    scale, zero = rng.uniform(0.01, 0.1, count).astype(np.float32), whole(rng, dtype, count)
    x = np.concatenate([rng.normal(0, 9, (2, 3, 500)), np.tile((np.arange(100) - 50) / 2, (2, 3, 1)) * 0.1], axis=2)
    x = x.astype(np.float32)
    attributes = {} if axis is None else {"axis": axis}
    q = kernel("QuantizeLinear", {"x": x, "s": scale, "z": zero}, ["x"], **attributes)
    np.testing.assert_array_equal(integer.quantize_linear(x, scale, zero, **attributes), q)
    real = kernel("DequantizeLinear", {"q": q, "s": scale, "z": zero}, ["q"], **attributes)
    np.testing.assert_array_equal(integer.dequantize_linear(q, scale, zero, **attributes), real)


def test_blocks_have_a_scale_each():
    q = np.array([[1, 2, 3, 4, 5]], np.int8)
    real = integer.dequantize_linear(q, np.float32([[1, 10, 100]]), None, axis=1, block_size=2)
    assert real.tolist() == [[1, 2, 30, 40, 500]]


@pytest.mark.parametrize(
    ("dtype", "ends"),
    [(np.uint8, (0, 255)), (np.int16, (-32768, 32767)), (ml_dtypes.int4, (-8, 7)), (ml_dtypes.uint4, (0, 15))],
)
def test_every_integer_type_has_limits_and_saturates_there(dtype, ends):
    assert limits(np.dtype(dtype).name) == ends
    found = integer.saturate(np.array([-1e9, 1e9]), dtype)
    assert found.dtype == dtype and found.astype(int).tolist() == list(ends)


def test_ties_go_to_the_even_integer_before_the_zero_point_is_added():
    sums, zero = np.array([1, 3, 5, -1, -3], np.int32), np.array(1, np.int8)
    assert integer.requantize(sums, np.float32(0.5), zero).tolist() == [1, 3, 3, 1, -1]


@given(
    x=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    scale=st.floats(2.0**-10, 1.0, width=32),
    zero=st.integers(0, 255),
)
def test_a_value_in_range_comes_back_within_half_a_step(x, scale, zero):
    values, grid = np.float32(x), np.array(zero, np.uint8)
    low, high = -zero * scale, (255 - zero) * scale
    inside = np.clip(values, low, high).astype(np.float32)
    back = integer.dequantize_linear(integer.quantize_linear(inside, scale, grid), scale, grid)
    assert np.abs(back - inside).max() <= scale / 2 * (1 + 1e-4)


@pytest.mark.parametrize(("transA", "transB"), list(itertools.product((None, 0, 1), repeat=2)))
@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("to_float", [True, False])
def test_qgemm_is_what_plain_loops_give(transA, transB, alpha, to_float):
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 256, (3, 4)).astype(np.uint8), rng.integers(-128, 128, (4, 2)).astype(np.int8)
    b_scale, bias = np.float32([0.25, 0.5]), np.int32([7, -900])
    sums = [[sum((int(a[i, k]) - 3) * (int(b[k, j]) - 1) for k in range(4)) for j in range(2)] for i in range(3)]
    real = (np.array(sums) + bias) * 0.5 * b_scale * alpha
    operands = (a.T if transA else a, np.float32(0.5), np.uint8(3), b.T if transB else b, b_scale, np.int8(1), bias)
    given = {name: value for name, value in (("transA", transA), ("transB", transB)) if value is not None}
    if to_float:
        found = integer.qgemm(*operands, alpha=alpha, **given)
        assert found.dtype == np.float32 and np.array_equal(found, real)
    else:
        found = integer.qgemm(*operands, np.float32(64), np.uint8(100), alpha=alpha, **given)
        assert found.dtype == np.uint8 and np.array_equal(found, np.clip(np.rint(real / 64) + 100, 0, 255))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("weight", "most"),
    [
        ([[64, 64], [-64, -64]], 128),
        ([[127, -128], [1, 0]], 128),
        ([[100, 29]], 129),
        ([[-100, -29], [1, 1]], 129),
        ([[-3, -5, -7, 2], [1, 0, 1, 1]], 12),
        ([[3, 5, 7, -2], [-1, 0, -1, -1]], 12),
        ([[127]], 127),
        ([[-128]], 128),
    ],
)
def test_the_largest_pair_is_the_worst_of_any_two_weights_of_a_channel(weight, most, axis):
    """Each weight may meet any activation from 0 to 255, and any other weight of its channel."""
    rows = np.int8(weight)
    pairs = [pair for row in rows.tolist() for pair in itertools.combinations(row if len(row) > 1 else [*row, 0], 2)]
    worst = max(abs(a * x + b * y) for x, y in pairs for a, b in itertools.product((0, 255), repeat=2))
    assert integer.largest_pair(rows if axis == 0 else rows.T, axis) == worst == 255 * most


def test_the_largest_pair_is_found_wherever_it_stands():
    """Of many weights, and of those that are all 0 or none at all."""
    rows = whole(np.random.default_rng(3), np.int8, (20, 300))
    ordered = np.sort(rows.astype(int), axis=1)
    worst = np.maximum(ordered[:, -2:].sum(axis=1), -ordered[:, :2].sum(axis=1))
    assert [integer.largest_pair(row[None], 0) for row in rows] == [255 * most for most in worst]
    assert integer.largest_pair(rows, 0) == 255 * worst.max()
    assert integer.largest_pair(np.zeros((4, 3), np.int8), 0) == integer.largest_pair(np.zeros((4, 0), np.int8), 0) == 0


ONE = [(), (1,), (1, 1)]


@pytest.mark.parametrize(("scales", "zeros"), [*itertools.product(ONE, ONE), *((one, (2,)) for one in ONE), ((2,), ())])
@pytest.mark.parametrize("axis", [0, 1])
def test_one_number_is_for_the_whole_tensor_whatever_its_shape(scales, zeros, axis):
    """Scale and zero point may each be one number or one for each channel; a vector has no axis 1 for them."""
    step, zero = np.full(scales, 0.5, np.float32), np.full(zeros, 3, np.uint8)
    x = np.float32([-1, 0.25, 0.75, 500])
    x = x if step.size == zero.size else np.stack([x, -x], axis)
    levels = np.clip(np.rint(x.astype(np.float64) / 0.5) + 3, 0, 255)
    found = integer.quantize_linear(x, step, zero, axis=axis)
    assert found.dtype == np.uint8 and np.array_equal(found, levels)
    assert np.array_equal(integer.dequantize_linear(found, step, zero, axis=axis), (levels - 3) * 0.5)


@given(st.data())
def test_the_largest_pair_is_that_of_sorted_weights(data):
    rows, columns = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    low = data.draw(st.integers(-128, 127))
    values = data.draw(st.lists(st.integers(low, 127), min_size=rows * columns, max_size=rows * columns))
    weight = np.array(values, np.int8).reshape(rows, columns)
    most = 0
    for row in weight.astype(np.int64):
        ends = np.sort(row)
        most = max(most, np.clip(ends[-2:], 0, None).sum(), -np.clip(ends[:2], None, 0).sum())
    assert integer.largest_pair(weight, 0) == integer.largest_pair(weight.T, 1) == 255 * most
