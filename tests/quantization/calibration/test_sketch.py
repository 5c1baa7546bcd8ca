"""The sketch: same result in any order, exact extremes, quantiles within a bin."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intact.quantization.calibration.observe import observe
from intact.quantization.calibration.resolve import resolve
from intact.quantization.calibration.sketch import Sketch
from intact.quantization.calibration.spread import spreads
from intact.quantization.planning.rescue import signal_to_noise
from intact.results import PlannedGrid, QuantPlan
from tests.builder import from_text

# Seven bits of mantissa: the width of a bin, relative to its values.
BIN = 2.0**-7

floats = st.floats(width=32)
arrays = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=8), elements=floats)


def sketch_of(*parts, histogram=True, whole=True):
    seen = Sketch(histogram=histogram, whole=whole)
    for part in parts:
        seen.add(np.asarray(part, np.float32))
    return seen


def same(left: Sketch, right: Sketch) -> bool:
    figures = [(sketch.low, sketch.high, sketch.count, sketch.nonfinite) for sketch in (left, right)]
    return figures[0] == figures[1] and all(
        np.array_equal(a, b) for a, b in zip(left.points(), right.points(), strict=True)
    )


@given(st.lists(arrays, min_size=1, max_size=4))
def test_sketches_merge_in_any_order_and_any_grouping_into_the_same(parts):
    whole = sketch_of(*parts)
    for order in itertools.permutations(parts):
        merged = functools.reduce(Sketch.merge, [sketch_of(part) for part in order])
        assert same(whole, merged)
        assert same(whole, sketch_of(*order))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_small_arrays_one_by_one_tell_what_one_large_array_does(count):
    values = np.random.default_rng(count).normal(size=(count, 300)).astype(np.float32)
    assert same(sketch_of(*values), sketch_of(values)) and sketch_of(*values).quantile(0.5) == sketch_of(
        values
    ).quantile(0.5)


@given(arrays, arrays)
def test_merging_leaves_both_sketches_as_they_were(first, second):
    left, right = sketch_of(first), sketch_of(second)
    left.merge(right).add(np.float32([1.0, 2.0]))
    assert same(left, sketch_of(first)) and same(right, sketch_of(second))


@given(arrays, st.booleans())
def test_extremes_are_exact_and_values_that_are_not_finite_are_counted_apart(values, histogram):
    seen = sketch_of(values, histogram=histogram)
    finite = values[np.isfinite(values)]
    assert (seen.count, seen.nonfinite) == (finite.size, values.size - finite.size)
    if finite.size:
        assert (seen.low, seen.high) == (finite.min(), finite.max())
        assert bool(seen.merge(seen.fresh()).rows) == histogram


@given(arrays)
def test_every_finite_value_is_within_half_a_bin_of_a_point(values):
    seen = sketch_of(values)
    finite = np.sort(values[np.isfinite(values)]).astype(np.float64)
    points, counts = seen.points()
    assert counts.sum() == finite.size
    assert (np.diff(points) >= 0).all()
    tolerance = np.abs(finite) * BIN / 2 + 2.0**-133  # the bins of the least denormals are that wide
    assert (np.abs(np.repeat(points, counts) - finite) <= tolerance).all()


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_stays_zero(zero):
    points, counts = sketch_of([zero] * 3 + [1.0]).points()
    assert points[0] == 0.0 and counts[0] == 3


DISTRIBUTIONS = {
    "normal": lambda rng: rng.standard_normal(20_000),
    "shifted": lambda rng: rng.normal(5, 0.1, 20_000),
    "heavy": lambda rng: rng.standard_t(2, 20_000) * 10,
    "one-sided": lambda rng: np.maximum(rng.standard_normal(20_000), 0),
    "small": lambda rng: rng.standard_normal(20_000) * 1e-20,
    "two masses": lambda rng: np.where(np.arange(20_000) < 20, 100.0, 1.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("share", [0.0, 1e-4, 0.01, 0.3, 0.5, 0.9, 0.99, 0.998, 1.0])
def test_a_quantile_is_within_a_bin_of_the_exact_one(name, share):
    values = DISTRIBUTIONS[name](np.random.default_rng(5)).astype(np.float32)
    around = np.quantile(values.astype(np.float64), np.clip([share - 1e-4, share + 1e-4], 0, 1))
    found = sketch_of(values).quantile(share)
    slack = np.abs(around) * BIN
    assert around[0] - slack[0] <= found <= around[1] + slack[1]


@given(arrays.filter(lambda a: np.isfinite(a).any()))
def test_quantiles_are_exact_at_the_ends_and_never_fall(values):
    seen = sketch_of(values)
    found = [seen.quantile(share) for share in (0.0, 0.1, 0.5, 0.75, 1.0)]
    assert (found[0], found[-1]) == (seen.low, seen.high)
    assert found == sorted(found)


def test_its_size_does_not_grow_with_what_it_has_seen():
    rng = np.random.default_rng(0)
    seen = sketch_of(rng.standard_normal(10**5))
    before = len(seen.rows)
    seen.add(rng.standard_normal(3 * 10**5).astype(np.float32))
    assert seen.count == 4 * 10**5 and len(seen.rows) <= before + 8


def test_a_merged_sketch_has_a_histogram_if_both_have_one():
    plain, full = Sketch(histogram=False), Sketch()
    plain.add(np.float32([1, 2]))
    full.add(np.float32([-3, 4]))
    for merged in (plain.merge(full), full.merge(plain)):
        assert (merged.histogram, merged.rows) == (False, {})
        assert (merged.low, merged.high, merged.count) == (-3, 4, 4)


def test_what_was_chosen_stays_where_the_tables_that_it_was_chosen_with_are_dropped():
    seen = sketch_of(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    chosen = seen.remember("range", lambda: seen.quantile(0.9))
    points, sums = seen.points(), seen.moments()
    seen.forget_tables()
    assert set(seen._known) == {"range"}
    assert seen.remember("range", lambda: pytest.fail("it was worked out again")) == chosen
    np.testing.assert_array_equal(seen.points(), points)
    np.testing.assert_array_equal(seen.moments(), sums)


def test_no_table_of_a_tensor_outlives_the_choice_of_its_grid():
    seen = {"x": sketch_of(np.random.default_rng(0).standard_normal(1000).astype(np.float32))}
    grid = PlannedGrid("uint8", symmetric=False, method="auto")
    plan = QuantPlan({}, {"x": grid}, {"x": "x"}, {}, (), (), {}, ("x",))
    assert signal_to_noise(plan, seen)["x"] > 30
    assert list(seen["x"]._known) == [grid]
    resolved = resolve(from_text("(float[1] x) => (float[1] y)", "y = Relu(x)"), plan, seen)
    assert spreads(plan, seen, resolved.tensors)["x"].counts
    assert list(seen["x"]._known) == [grid]


@pytest.mark.parametrize("shape", [(1, 96, 128, 128), (2800, 384), (1_200_007,)], ids=["image", "tokens", "prime"])
def test_a_sample_of_a_large_array_stands_for_all_of_it(shape):
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    seen = sketch_of(values, whole=False)
    assert (seen.low, seen.high, seen.count) == (values.min(), values.max(), values.size)
    assert seen.points()[1].sum() == values.size and (seen.points()[1] >= 0).all()
    shares = np.array([0.001, 0.1, 0.5, 0.9, 0.999])
    below = [(values < seen.quantile(share)).mean() for share in shares]
    # Three deviations of a sample of 100,000, and half a bin.
    assert np.abs(below - shares).max() < 3 * np.sqrt(0.25 / 100_000) + 0.002


def test_every_channel_has_its_share_of_a_sample():
    # Of tokens with 384 channels every other one is large: a step of two would see only the ones or the others.
    values = np.tile(np.array([1.0, 100.0], np.float32), (1400, 384 // 2))
    points, counts = sketch_of(values, whole=False).points()
    assert counts[points > 50].sum() == pytest.approx(values.size / 2, rel=0.001)


def test_a_percentile_is_that_of_all_values_of_a_large_tensor():
    # Of the 100 values beyond it on both sides a sample has a quarter, which says another percentile.
    values = np.random.default_rng(4).standard_t(3, (1, 1 << 20)).astype(np.float32)
    grid = PlannedGrid("uint8", symmetric=False, method="percentile")
    plan = QuantPlan({}, {"x": grid}, {"x": "x"}, {}, (), (), {}, ("x",))
    model = from_text("(float[1, 1048576] x) => (float[1, 1048576] y)", "y = Relu(x)")
    seen = observe(model, plan, [{"x": values}])["x"]
    for share in (0.00005, 0.0005, 0.9995, 0.99995):
        assert seen.quantile(share) == pytest.approx(np.quantile(values, share), rel=BIN)
