"""Range methods, each against a plain reference on the raw values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.numbers.encoding import encode, round_to_grid
from intact.quantization.calibration.ranges import METHODS, range_of, worth_trying
from intact.quantization.calibration.ranges.auto import FINE, WORTH_CLIPPING
from intact.quantization.calibration.ranges.error import mean_squared_error
from intact.quantization.calibration.ranges.tails import with_tails
from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range

RNG = np.random.default_rng(11)
TENSORS = {
    "normal": RNG.standard_normal(20_000),
    "outlier": np.concatenate([RNG.standard_normal(20_000), [60.0]]),
    "heavy tail": RNG.standard_t(3, 20_000),
    "one-sided": np.maximum(RNG.standard_normal(20_000), 0) ** 2,
    "skewed": RNG.gamma(2.0, 1.0, 20_000) - 1,
    "negative": -np.abs(RNG.standard_t(4, 20_000)),
}
TENSORS = {name: values.astype(np.float32) for name, values in TENSORS.items()}
GRIDS = [("uint8", False), ("int8", True), ("int4", True), ("uint16", False)]

every_tensor = pytest.mark.parametrize("name", TENSORS)
every_grid = pytest.mark.parametrize(("dtype", "symmetric"), GRIDS)


def sketch_of(values):
    seen = Sketch()
    seen.add(values)
    return seen


def chosen(method, values, dtype="uint8", symmetric=False):
    return METHODS[method].range_of(sketch_of(values), PlannedGrid(dtype, symmetric, method))


def real_error(values, wanted: Range, dtype, symmetric):
    """The mean squared error of the values themselves on the grid of a range."""
    encoding = encode(wanted.low, wanted.high, dtype, symmetric=symmetric)
    exact = values.astype(np.float64)
    return float(np.mean((round_to_grid(exact, encoding) - exact) ** 2))


def test_the_methods_are_those_of_the_settings():
    assert list(METHODS) == ["minmax", "percentile", "entropy", "mse", "auto"]


def test_a_range_is_worked_out_once_until_something_is_added(monkeypatch):
    asked = []

    class Counted:
        def range_of(self, seen, grid):
            asked.append(grid)
            return Range(seen.low, seen.high)

    monkeypatch.setitem(METHODS, "minmax", Counted())
    seen, grids = sketch_of(TENSORS["normal"]), [PlannedGrid(dtype, False, "minmax") for dtype in ("uint8", "uint16")]
    before = [range_of(seen, grid) for grid in (*grids, *grids)]
    assert asked == grids and before[:2] == before[2:]
    seen.add(np.float32([100.0]))
    assert range_of(seen, grids[0]).high == 100.0


@every_tensor
def test_minmax_covers_everything(name):
    assert chosen("minmax", TENSORS[name]) == Range(float(TENSORS[name].min()), float(TENSORS[name].max()))


@every_tensor
def test_percentile_is_the_quantile_of_the_values(name):
    values = TENSORS[name].astype(np.float64)
    found = chosen("percentile", TENSORS[name])
    for end, share in ((found.low, 0.00005), (found.high, 0.99995)):
        # Between two order statistics any value is a quantile.
        bounds = np.quantile(values, share, method="lower"), np.quantile(values, share, method="higher")
        assert min(bounds) - abs(min(bounds)) / 128 <= end <= max(bounds) + abs(max(bounds)) / 128


@every_tensor
@every_grid
def test_mse_is_as_good_as_a_brute_force_search_on_the_values(name, dtype, symmetric):
    values = TENSORS[name]
    low, high = float(values.min()), float(values.max())
    shares = np.linspace(0.02, 1.0, 40)
    ends = (
        [Range(low * s, high * s) for s in shares]
        if symmetric
        else [Range(low * s, high * t) for s in (shares if low < 0 else [1.0]) for t in (shares if high > 0 else [1.0])]
    )
    sample = values[::10] if not symmetric else values
    best = min(ends, key=lambda ends: real_error(sample, ends, dtype, symmetric))
    found = real_error(values, chosen("mse", values, dtype, symmetric), dtype, symmetric)
    assert found <= 1.06 * real_error(values, best, dtype, symmetric)


@every_tensor
@every_grid
def test_the_first_range_to_try_on_layers_has_room_for_what_tails_promise(name, dtype, symmetric):
    """Where nothing is worth clipping, more effort must not end at the last value that was seen."""
    seen, grid = sketch_of(TENSORS[name]), PlannedGrid(dtype, symmetric, "auto")
    first, *others = worth_trying(grid)
    if dtype in FINE:
        assert (first, others) == ("auto", [])
        return
    assert range_of(seen, replace(grid, method=first)) == with_tails(seen, grid)
    assert others == ["percentile", "entropy", "mse"]
    assert worth_trying(replace(grid, method="minmax")) == ("minmax",)


@pytest.mark.parametrize(("count", "times"), [(1023, 3.0), (1024, 1.5)])
def test_16_bits_reach_far_beyond_what_few_values_of_a_result_show(count, times):
    """Three times the range of a few, a quarter beyond each end of more; below zero only where values were."""
    values = np.linspace(-1, 1, count, dtype=np.float32)
    result = PlannedGrid("uint16", symmetric=False, method="auto", is_result=True)
    found = range_of(sketch_of(values), result)
    assert found.high - found.low >= 2 * times if count < 1024 else found.high - found.low < 2 * times
    assert range_of(sketch_of(values + 1), result).low == 0
    inner = range_of(sketch_of(values), replace(result, is_result=False))
    assert inner.high - inner.low < 3


@pytest.mark.parametrize("method", METHODS)
def test_room_above_is_added_to_the_range_of_every_method(method):
    seen, grid = sketch_of(TENSORS["normal"]), PlannedGrid("uint8", symmetric=False, method=method)
    plain, roomy = range_of(seen, grid), range_of(seen, replace(grid, room_above=0.125))
    assert roomy == Range(plain.low, plain.high + 0.125 * (plain.high - plain.low))


@every_tensor
@every_grid
def test_auto_clips_only_where_that_is_clearly_better_and_then_as_well_as_any_method(name, dtype, symmetric):
    seen, grid = sketch_of(TENSORS[name]), PlannedGrid(dtype, symmetric, "auto")
    ranges = {method: METHODS[method].range_of(seen, grid) for method in METHODS}
    if dtype in FINE:
        tails = with_tails(seen, grid)
        assert ranges["auto"] == Range(min(seen.low * 1.25, tails.low), max(seen.high * 1.25, tails.high))
        assert METHODS["auto"].range_of(seen, replace(grid, bounded=True)) == ranges["minmax"]
        # All that there can be, though it was not seen; but at most 64 times as much as was.
        least, most = min(-1.0, seen.low), max(1.0, seen.high)
        assert METHODS["auto"].range_of(seen, replace(grid, bounds=Range(-1.0, 1.0))) == Range(least, most)
        reach = 64 * max(-seen.low, seen.high)
        far = METHODS["auto"].range_of(seen, replace(grid, reach=500.0))
        assert far.low <= -min(500.0, reach) and far.high >= min(500.0, reach)
        assert METHODS["auto"].range_of(seen, replace(grid, bounds=Range(0.0, 1e6))) == Range(min(seen.low, 0.0), reach)
        roomy = METHODS["auto"].range_of(seen, replace(grid, headroom=9.0))
        assert roomy == Range(min(seen.low * 10, tails.low), max(seen.high * 10, tails.high))
        return
    errors = dict(zip(ranges, mean_squared_error(seen, list(ranges.values()), grid), strict=True))
    least = min(errors[method] for method in ("percentile", "mse"))
    clips = errors["minmax"] > WORTH_CLIPPING * least
    if clips:
        assert errors["auto"] == least
    else:
        assert ranges["auto"] == with_tails(seen, grid)


@every_tensor
@pytest.mark.parametrize(("dtype", "symmetric"), [("uint8", False), ("int8", True), ("uint16", False)])
def test_the_estimated_error_is_close_to_the_real_one_where_steps_are_small_beside_the_spread(name, dtype, symmetric):
    values = TENSORS[name]
    for share in (0.1, 0.5, 1.0):
        wanted = Range(float(values.min()) * share, float(values.max()) * share)
        estimate = mean_squared_error(sketch_of(values), [wanted], PlannedGrid(dtype, symmetric, "mse"))[0]
        assert estimate == pytest.approx(real_error(values, wanted, dtype, symmetric), rel=0.25, abs=1e-12)


@pytest.mark.parametrize(("method", "dtype"), [("entropy", "uint8"), ("percentile", "uint8"), ("mse", "int4")])
def test_one_outlier_is_clipped(method, dtype):
    found = chosen(method, TENSORS["outlier"], dtype)
    assert 3.0 < found.high < 40.0 and -6.0 < found.low < -2.0


def test_mse_keeps_an_outlier_that_costs_less_than_clipping_it():
    assert chosen("mse", TENSORS["outlier"]).high > 50.0


def test_entropy_clips_a_heavy_tail_and_little_of_a_uniform_tensor():
    heavy = chosen("entropy", TENSORS["heavy tail"])
    assert heavy.high < 0.6 * TENSORS["heavy tail"].max()
    even = RNG.uniform(-1, 1, 50_000).astype(np.float32)
    assert chosen("entropy", even).high > 0.9


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [3.5], [-2.0], [0.0, 1e-30], [1e30, -1e30], [5.0] * 9 + [0.0], [0.0, 1e-45]]
)
def test_degenerate_tensors_have_a_range_that_covers_what_they_are(method, values):
    values = np.float32(values)
    found = chosen(method, values)
    encoding = encode(found.low, found.high, "uint8", symmetric=False)
    back = round_to_grid(values, encoding)
    assert np.isfinite([found.low, found.high]).all()
    assert (np.abs(back - values) <= 0.6 * encoding.scale + np.abs(values) * 2**-7).all()


@settings(max_examples=30)
@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=50), st.sampled_from(list(METHODS)), st.booleans())
def test_a_method_never_leaves_what_was_seen(values, method, symmetric):
    values = np.float32(values)
    found = chosen(method, values, "int8", symmetric)
    assert min(values.min(), 0.0) <= found.low <= found.high <= max(values.max(), 0.0)
