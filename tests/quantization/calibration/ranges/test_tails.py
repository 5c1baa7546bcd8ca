"""Room for unseen values, judged by fresh values of the distribution that the seen ones came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intact.numbers.encoding import encode, round_to_grid
from intact.quantization.calibration.ranges.tails import with_tails
from intact.quantization.calibration.sketch import Sketch
from intact.results import PlannedGrid, Range

UINT8 = PlannedGrid("uint8", False, "auto")
DRAWS = {
    "laplace": lambda random, count: random.laplace(size=count),
    "normal": lambda random, count: random.standard_normal(count),
    "skewed": lambda random, count: random.gamma(2.0, 1.0, count) - 1,
}


def sketch_of(values):
    seen = Sketch()
    seen.add(np.asarray(values, np.float32))
    return seen


def error(values, ends, grid):
    encoding = encode(ends.low, ends.high, grid.dtype, symmetric=grid.symmetric)
    return float(np.mean((round_to_grid(values, encoding) - values) ** 2))


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("grid", [UINT8, PlannedGrid("int8", True, "auto")], ids=["uint8", "int8 symmetric"])
def test_a_few_hundred_values_get_the_room_that_lessens_the_error_of_fresh_ones(name, grid):
    random = np.random.default_rng(3)
    fresh = DRAWS[name](random, 200_000)
    with_room, without = [], []
    for _ in range(30):
        seen = sketch_of(DRAWS[name](random, 300))
        with_room.append(error(fresh, with_tails(seen, grid), grid))
        without.append(error(fresh, Range(seen.low, seen.high), grid))
    assert np.mean(with_room) < 0.75 * np.mean(without)


def test_the_room_is_that_of_the_formula():
    """Exactly exponential values, for which β and the best room are known."""
    count = 400
    values = -np.log(1 - (np.arange(count) + 0.5) / count)
    found = with_tails(sketch_of(values), UINT8)
    tail = np.sort(values)[-8:]
    beta, width = np.mean(tail - tail[0]), values.max()
    for _ in range(50):
        room = beta * (np.log(12 * 255**2 * beta / (count * width)) - 1)
        width = values.max() + room
    assert found.low == pytest.approx(values.min(), rel=1e-6)
    assert found.high == pytest.approx(values.max() + room, rel=0.02)


def test_many_values_get_none():
    seen = sketch_of(np.random.default_rng(5).standard_normal(2_000_000))
    assert with_tails(seen, UINT8) == Range(seen.low, seen.high)


def test_a_side_without_values_and_a_bounded_tensor_get_none():
    seen = sketch_of(np.maximum(np.random.default_rng(7).standard_normal(300), 0.0))
    found = with_tails(seen, UINT8)
    assert found.low == 0.0 and found.high > seen.high
    assert with_tails(seen, replace(UINT8, bounded=True)) == Range(seen.low, seen.high)


def test_too_few_values_to_judge_a_tail_get_none():
    seen = sketch_of(np.arange(15.0) - 7)
    assert with_tails(seen, UINT8) == Range(-7.0, 7.0)


def test_room_is_never_more_than_what_was_seen():
    seen = sketch_of(np.random.default_rng(9).laplace(size=60))
    found = with_tails(seen, PlannedGrid("uint16", False, "auto"))
    width = seen.high - seen.low
    assert (seen.low - found.low, found.high - seen.high) == pytest.approx((width, width))


def test_constant_values_get_none():
    assert with_tails(sketch_of(np.full(64, 2.0)), UINT8) == Range(2.0, 2.0)
