"""The arithmetic of grids, against plain float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.numbers import grid
from intact.results import Encoding

DTYPES = ["uint8", "int8", "uint16", "int16", "uint4", "int4"]
reals = st.floats(-1e6, 1e6, width=32)


@given(st.sampled_from(DTYPES), st.booleans(), st.tuples(reals, reals), st.lists(st.floats(0, 1), min_size=1))
def test_a_value_in_range_moves_by_half_a_step_at_most(dtype, symmetric, ends, shares):
    low, high = min(ends), max(ends)
    encoding = grid.encode(low, high, dtype, symmetric=symmetric)
    values = np.clip(low + (high - low) * np.array(shares), low, high)
    back = grid.dequantize(grid.quantize(values, encoding), encoding)
    # A float32 scale is off by 2^-24 of itself, which adds up over all steps of the grid.
    slack = float(encoding.scale) * (0.5 + 2.0**-24 * 65536)
    assert (np.abs(back - values) <= slack).all()


@pytest.mark.parametrize("dtype", grid.LIMITS)
def test_integers_are_stored_in_the_type_of_their_grid_or_in_bytes_where_that_is_narrower(dtype):
    encoding = grid.encode(-1.0, 1.0, dtype, symmetric=dtype.startswith("int"))
    values = np.linspace(-1.5, 1.5, 301, dtype=np.float32)
    found = grid.stored(values, encoding)
    assert found.dtype == {"uint4": "uint8", "int4": "int8", "int2": "int8"}.get(dtype, dtype)
    assert np.array_equal(found, grid.quantize(values, encoding))


@given(st.sampled_from(DTYPES), st.booleans(), st.tuples(reals, reals))
def test_zero_is_on_every_grid(dtype, symmetric, ends):
    encoding = grid.encode(min(ends), max(ends), dtype, symmetric=symmetric)
    assert grid.dequantize(grid.quantize(np.zeros(1), encoding), encoding) == 0
    qmin, qmax = grid.LIMITS[dtype]
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
    assert grid.quantize(np.array([-1.0, -0.5, 0.0, 0.5, 1.0]), encoding).tolist() == [-2, -1, 0, 1, 1]


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
    back = grid.quantize(values, together)
    for channel in range(len(ends)):
        alone = Encoding("int8", together.scale[channel].reshape(()), together.zero_point[channel].reshape(()))
        plain = grid.quantize(values.take(channel, axis), alone)
        assert np.array_equal(back.take(channel, axis), plain)


@given(st.sampled_from(DTYPES), st.lists(st.floats(-1e30, 1e30), min_size=1))
def test_rounding_is_half_to_even_and_saturates(dtype, values):
    qmin, qmax = grid.LIMITS[dtype]
    encoding = Encoding(dtype, np.float32(0.5), np.int64((qmin + qmax) // 2))
    expected = [max(qmin, min(qmax, round(v / 0.5) + (qmin + qmax) // 2)) for v in values]
    assert grid.quantize(np.array(values), encoding).tolist() == expected


@pytest.mark.parametrize("zero_point", [128, 127])
def test_a_value_halfway_between_two_steps_goes_to_the_even_one_before_the_zero_point_is_added(zero_point):
    encoding = Encoding("uint8", np.float32(0.5), np.int64(zero_point))
    halves = np.array([-1.25, -0.75, -0.25, 0.25, 0.75, 1.25])
    whole = [-2, -2, 0, 0, 2, 2]
    assert (grid.quantize(halves, encoding) - zero_point).tolist() == whole
    assert (grid.stored(halves, encoding).astype(int) - zero_point).tolist() == whole


def test_an_encoding_has_one_zero_point_per_scale_and_an_axis_for_several():
    with pytest.raises(AssertionError, match="one zero point per scale"):
        Encoding("int8", np.ones(2, np.float32), np.zeros(1, np.int64), 0)
    with pytest.raises(AssertionError, match="need an axis"):
        Encoding("int8", np.ones(2, np.float32), np.zeros(2, np.int64))
