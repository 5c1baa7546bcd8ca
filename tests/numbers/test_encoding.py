"""The arithmetic of grids, against plain float64 and against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from intact.numbers import encoding as grid
from intact.numbers.encoding import Encoding
from intact.numbers.integer_types import GRID_TYPES, limits

DTYPES = ["uint8", "int8", "uint16", "int16", "uint4", "int4"]
reals = st.floats(-1e6, 1e6, width=32)


def nearest(values, encoding):
    """Integers as constants get them."""
    return grid.quantize(values, encoding, precision=np.float64)


@given(st.sampled_from(DTYPES), st.booleans(), st.tuples(reals, reals), st.lists(st.floats(0, 1), min_size=1))
def test_a_value_in_range_moves_by_half_a_step_at_most(dtype, symmetric, ends, shares):
    low, high = min(ends), max(ends)
    encoding = grid.encode(low, high, dtype, symmetric=symmetric)
    values = np.clip(low + (high - low) * np.array(shares), low, high)
    back = grid.dequantize(nearest(values, encoding), encoding, precision=np.float64)
    # A float32 scale is off by 2^-24 of itself, which adds up over all steps of the grid.
    slack = float(encoding.scale) * (0.5 + 2.0**-24 * 65536)
    assert (np.abs(back - values) <= slack).all()


@pytest.mark.parametrize("dtype", GRID_TYPES)
def test_integers_are_stored_in_the_type_of_their_grid_or_in_bytes_where_that_is_narrower(dtype):
    encoding = grid.encode(-1.0, 1.0, dtype, symmetric=dtype.startswith("int"))
    values = np.linspace(-1.5, 1.5, 301, dtype=np.float32)
    found = nearest(values, encoding)
    assert found.dtype == {"uint4": "uint8", "int4": "int8", "int2": "int8"}.get(dtype, dtype)
    exact = np.rint(values / np.float64(encoding.scale)) + encoding.zero_point
    assert np.array_equal(found, np.clip(exact, *limits(dtype)))


@given(st.sampled_from(DTYPES), st.booleans(), st.tuples(reals, reals))
def test_zero_is_on_every_grid(dtype, symmetric, ends):
    encoding = grid.encode(min(ends), max(ends), dtype, symmetric=symmetric)
    assert grid.dequantize(nearest(np.zeros(1), encoding), encoding) == 0
    qmin, qmax = limits(dtype)
    assert qmin <= int(encoding.zero_point) <= qmax


@pytest.mark.parametrize(
    ("dtype", "symmetric", "low", "high", "scale", "zero_point"),
    [
        ("uint8", False, -1.0, 1.55, 0.01, 100),
        ("uint8", False, 0.0, 2.55, 0.01, 0),
        ("uint8", False, 0.5, 2.55, 0.01, 0),
        ("int8", False, 0.0, 2.55, 0.01, -128),
        ("int8", True, -1.0, 1.27, 0.01, 0),
        ("uint8", True, -1.0, 1.27, 0.01, 128),
        ("uint16", False, 0.0, 65.535, 0.001, 0),
        ("int16", True, -32.767, 1.0, 0.001, 0),
        ("int4", True, -0.7, 0.1, 0.1, 0),
        ("uint8", False, 0.0, 0.0, 1.0, 0),
    ],
)
def test_a_range_gives_this_grid(dtype, symmetric, low, high, scale, zero_point):
    encoding = grid.encode(low, high, dtype, symmetric=symmetric)
    assert encoding.scale.dtype == np.float32
    assert (np.float32(scale), zero_point) == (encoding.scale, encoding.zero_point)


def test_a_two_bit_grid_uses_its_one_more_negative_step():
    encoding = grid.encode(-1.0, 1.0, "int2", symmetric=True)
    assert nearest(np.array([-1.0, -0.5, 0.0, 0.5, 1.0]), encoding).tolist() == [-2, -1, 0, 1, 1]


def test_a_tiny_range_keeps_a_normal_scale_even_for_products():
    encoding = grid.encode(0.0, 1e-40, "uint8", symmetric=False)
    assert encoding.scale * encoding.scale >= np.finfo(np.float32).tiny


@given(st.lists(st.tuples(reals, reals), min_size=1, max_size=5), st.integers(0, 2))
def test_scales_per_channel_are_those_of_the_channels_alone(ends, axis):
    low, high = np.array([min(e) for e in ends]), np.array([max(e) for e in ends])
    together = grid.encode(low, high, "int8", symmetric=True, axis=axis)
    for channel in range(len(ends)):
        alone = grid.encode(low[channel], high[channel], "int8", symmetric=True)
        assert (together.scale[channel], together.zero_point[channel]) == (alone.scale, alone.zero_point)
    values = np.linspace(-1e6, 1e6, len(ends) * 4).reshape(4, -1)
    values = np.moveaxis(values[:, :, None], 1, axis)
    back = nearest(values, together)
    for channel in range(len(ends)):
        alone = Encoding("int8", together.scale[channel].reshape(()), together.zero_point[channel].reshape(()))
        plain = nearest(values.take(channel, axis), alone)
        assert np.array_equal(back.take(channel, axis), plain)


@given(st.sampled_from(DTYPES), st.lists(st.floats(-1e30, 1e30), min_size=1))
def test_rounding_is_half_to_even_and_saturates(dtype, values):
    qmin, qmax = limits(dtype)
    encoding = Encoding(dtype, np.float32(0.5), np.int64((qmin + qmax) // 2))
    expected = [max(qmin, min(qmax, round(v / 0.5) + (qmin + qmax) // 2)) for v in values]
    assert nearest(np.array(values), encoding).tolist() == expected


@pytest.mark.parametrize("zero_point", [128, 127])
def test_a_value_halfway_between_two_steps_goes_to_the_even_one_before_the_zero_point_is_added(zero_point):
    encoding = Encoding("uint8", np.float32(0.5), np.int64(zero_point))
    halves = np.array([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25])
    whole = [-2, -2, 0, 0, 2, 2]
    assert (nearest(halves, encoding).astype(int) - zero_point).tolist() == whole
    assert (grid.quantize(halves, encoding).astype(int) - zero_point).tolist() == whole


def test_an_encoding_has_one_zero_point_per_scale_and_an_axis_for_several():
    with pytest.raises(AssertionError, match="one zero point per scale"):
        Encoding("int8", np.ones(2, np.float32), np.zeros(1, np.int64), 0)
    with pytest.raises(AssertionError, match="need an axis"):
        Encoding("int8", np.ones(2, np.float32), np.zeros(2, np.int64))


def runtime_levels(values, encoding):
    """The integers that ONNX Runtime's QuantizeLinear finds, as int64."""
    to = helper.np_dtype_to_tensor_dtype(np.dtype(encoding.dtype))
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, values.shape)],
        [helper.make_tensor_value_info("y", to, values.shape)],
        [
            numpy_helper.from_array(encoding.scale, "s"),
            numpy_helper.from_array(encoding.zero_point.astype(encoding.dtype), "z"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})[0].astype(np.int64)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_what_a_model_quantizes_as_it_runs_gets_the_integers_that_onnx_runtime_finds(dtype):
    values = np.random.default_rng(0).normal(size=400_000).astype(np.float32)
    encoding = grid.encode(values.min(), values.max(), dtype, symmetric=False)
    assert np.array_equal(grid.quantize(values, encoding), runtime_levels(values, encoding))
    assert np.array_equal(grid.quantize(values.astype(np.float64), encoding), grid.quantize(values, encoding))


def test_a_constant_gets_its_nearest_level_where_float32_finds_its_neighbour():
    values = np.random.default_rng(0).normal(size=400_000).astype(np.float32)
    encoding = grid.encode(values.min(), values.max(), "uint16", symmetric=False)
    exact, running = nearest(values, encoding), grid.quantize(values, encoding)
    apart = exact != running
    assert 20 < apart.sum() < 200
    off = [np.abs(grid.dequantize(found, encoding, precision=np.float64) - values)[apart] for found in (exact, running)]
    assert (off[0] <= off[1]).all() and (off[0] < off[1]).any()


def test_int32_is_rounded_in_float64_only():
    encoding = Encoding("int32", np.array(1, np.float32), np.array(0))
    values = np.array([2.0**31 - 1, -(2.0**31), 16777217.0])
    assert nearest(values, encoding).tolist() == [2**31 - 1, -(2**31), 16777217]
    with pytest.raises(AssertionError, match="int32 needs float64"):
        grid.quantize(values, encoding)


@given(st.sampled_from(DTYPES), st.lists(st.floats(-300, 300, width=32), min_size=1))
def test_rounding_to_a_grid_is_to_quantize_and_to_dequantize(dtype, values):
    encoding = grid.encode(-100.0, 90.0, dtype, symmetric=False)
    array = np.float32(values)
    back = grid.dequantize(grid.quantize(array, encoding), encoding)
    assert np.array_equal(grid.round_to_grid(array, encoding), back)


def test_rounding_to_a_grid_keeps_what_is_no_number_and_reads_with_the_grid_of_the_reader():
    written = grid.encode(-1.0, 1.0, "uint8", symmetric=False)
    found = grid.round_to_grid(np.array([np.nan, np.inf, -np.inf], np.float32), written)
    low, high = written.ends()
    assert np.isnan(found[0]) and found[1] == np.float32(high) and found[2] == np.float32(low)
    read = Encoding("uint8", written.scale * 2, written.zero_point)
    assert grid.round_to_grid(np.float32([0.25]), written, read) == 2 * grid.round_to_grid(np.float32([0.25]), written)


def test_blocks_are_rounded_with_their_own_scale_and_the_last_may_be_short():
    encoding = Encoding("int8", np.float32([[1, 10, 100]]), np.array([[0, 1, 0]]), 1, 2)
    assert grid.quantize(np.float32([[1, 2, 30, 40, 500]]), encoding).tolist() == [[1, 2, 4, 5, 5]]
    assert grid.dequantize(np.int8([[1, 2, 4, 5, 5]]), encoding).tolist() == [[1, 2, 30, 40, 500]]
