"""Turns, percentiles and ratios on a clock that the test turns: no figure depends on the machine."""

from __future__ import annotations

import numpy as np
import pytest

from intact.profiling.timing import FEWEST, MOST, WARM_UP, affordable, latencies, race


class Clock:
    """A clock that moves only when a model runs."""

    def __init__(self):
        self.now = 0.0
        self.ran = []

    def __call__(self):
        return self.now

    def model(self, name, seconds):
        def run(number):
            self.ran.append((number, name))
            self.now += seconds(number)

        return run


def test_models_take_turns_and_none_always_goes_first():
    clock = Clock()
    models = [clock.model(name, lambda _: 1.0) for name in "abc"]
    times = race(models, 6, clock=clock)
    order = [name for _, name in clock.ran[WARM_UP * 3 :]]
    assert "".join(order) == "abcbcacab" * 2 and times.shape == (6, 3)


def test_the_warm_up_is_not_counted():
    clock = Clock()
    cold = iter([100.0] * WARM_UP + [1.0] * 10)
    assert race([clock.model("a", lambda _: next(cold))], 10, clock=clock).max() == 1.0


def test_noise_that_hits_a_round_hits_all_and_leaves_the_ratio():
    clock = Clock()
    slow = [1.0, 5.0, 2.0, 9.0, 3.0] * 6
    models = [clock.model(n, lambda number, f=f: f * slow[number]) for n, f in (("a", 1.0), ("b", 2.0), ("c", 0.5))]
    _, b, c = latencies(race(models, len(slow), clock=clock))
    assert (b.ratio_to_first, b.ratio_low, b.ratio_high) == (2.0, 2.0, 2.0) and b.is_slower
    assert (c.ratio_to_first, c.is_slower) == (0.5, False)


def test_percentiles_are_those_of_numpy():
    times = np.random.default_rng(0).random((100, 2)) + 1
    for found, column in zip(latencies(times), times.T, strict=True):
        assert (found.p50, found.p90, found.p99) == tuple(np.percentile(column, (50, 90, 99)))
        assert found.ratio_low <= found.ratio_to_first <= found.ratio_high


def test_a_difference_within_the_noise_is_not_called_slower():
    rng = np.random.default_rng(1)
    times = rng.lognormal(0, 0.5, (40, 2))
    times[:, 1] *= 1.01
    assert not latencies(times)[1].is_slower
    times[:, 1] *= 3
    assert latencies(times)[1].is_slower


@pytest.mark.parametrize(("seconds", "rounds"), [(100.0, FEWEST), (0.1, 100), (1e-6, MOST), (0.0, MOST)])
def test_without_a_number_rounds_are_what_is_affordable(seconds, rounds):
    assert affordable(seconds) == rounds
