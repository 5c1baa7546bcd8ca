"""The spread of a tensor: its histogram as numpy counts it, and the share that a grid cuts off."""

from __future__ import annotations

import numpy as np
import pytest

from intact.numbers.encoding import encode
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.calibration.spread import BINS, spread_of

# The width of a bin of the sketch, relative to its values: so much may fall on the other side of an edge.
SLACK = 2.0**-7


def seen(values, *, histogram=True):
    sketch = Sketch(histogram=histogram)
    sketch.add(values)
    return sketch


@pytest.mark.parametrize("shift", [0.0, 2.0, -40.0])
def test_counts_are_those_of_numpy_but_for_values_next_to_an_edge(shift):
    values = (np.random.default_rng(0).standard_normal(100_000) + shift).astype(np.float32)
    found = spread_of(seen(values), encode(values.min(), values.max(), "uint8", symmetric=False))
    expected, edges = np.histogram(values, BINS, (values.min(), values.max()))
    assert (found.low, found.high) == (values.min(), values.max())
    assert sum(found.counts) == pytest.approx(values.size, abs=BINS)
    # A shifted edge moves what lies within a bin of the sketch; so does the far end of it.
    reach = SLACK * np.abs(edges).max() * expected.max() / (edges[1] - edges[0])
    assert np.abs(np.array(found.counts) - expected).max() <= reach
    assert found.cut_off == 0.0


def test_zeros_of_a_relu_are_in_its_first_bin():
    values = np.maximum(np.random.default_rng(0).standard_normal(10_000), 0).astype(np.float32)
    found = spread_of(seen(values), encode(0.0, 1.0, "uint8", symmetric=False))
    assert found.counts[0] >= np.sum(values == 0)


@pytest.mark.parametrize("low", [0.0, -1.0])
@pytest.mark.parametrize("high", [0.25, 1.5, 3.0])
def test_values_beyond_half_a_step_of_an_end_are_cut_off(low, high):
    values = np.random.default_rng(1).standard_normal(200_000).astype(np.float32)
    encoding = encode(low, high, "uint8", symmetric=False)
    least, greatest = (float(end) for end in encoding.ends())
    half = float(encoding.scale) / 2
    expected = np.mean((values < least - half) | (values > greatest + half))
    assert spread_of(seen(values), encoding).cut_off == pytest.approx(expected, abs=2 * SLACK)


def test_a_tensor_of_which_only_extremes_were_seen_has_no_counts():
    found = spread_of(seen(np.float32([-1, 5]), histogram=False), encode(-1.0, 5.0, "uint8", symmetric=False))
    assert (found.low, found.high, found.counts, found.cut_off) == (-1.0, 5.0, (), 0.0)


def test_a_tensor_of_one_value_is_in_one_bin():
    found = spread_of(seen(np.full(7, 2.0, np.float32)), encode(0.0, 2.0, "uint8", symmetric=False))
    assert sorted(found.counts)[-2:] == [0, 7] and found.cut_off == 0.0
