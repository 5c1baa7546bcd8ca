"""Signal and noise in decibels, against plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.numbers.decibels import decibels, sqnr_db, sqnr_of


@pytest.mark.parametrize(("ratio", "db"), [(1.0, 0.0), (10.0, 10.0), (1000.0, 30.0), (0.01, -20.0)])
def test_ten_decibels_are_a_factor_of_ten(ratio, db):
    assert decibels(ratio) == pytest.approx(db, abs=1e-12)
    assert decibels(np.array([ratio, ratio])).tolist() == [decibels(ratio)] * 2


@pytest.mark.parametrize(
    ("signal", "noise", "db"),
    [
        (100.0, 1.0, 20.0),
        (0.0, 0.0, math.inf),
        (1.0, 0.0, math.inf),
        (0.0, 1.0, -math.inf),
        (1.0, math.inf, -math.inf),
        (1.0, math.nan, -math.inf),
    ],
)
def test_no_noise_is_infinitely_good_and_no_signal_or_no_number_infinitely_bad(signal, noise, db):
    assert sqnr_db(signal, noise) == db


def test_arrays_are_compared_in_float64():
    right = np.float32([3.0, 4.0, 0.0])
    found = np.float32([3.0, 4.0, 0.5])
    assert sqnr_of(right, found) == 10 * np.log10(25 / 0.25)
    large = np.float32([1e30, 1e30])
    assert sqnr_of(large, large * np.float32(1.1)) == pytest.approx(20, abs=1e-4)


@pytest.mark.parametrize(
    ("right", "found", "db"),
    [
        ([1.0, 1.0], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [1.1, 0.9], 20.0),
        ([0.0, 0.0], [0.0, 1e-9], -math.inf),
        ([1.0, 1.0], [1.0, math.nan], -math.inf),
        ([1.0, 1.0], [[1.0, 1.0]], -math.inf),
    ],
)
def test_the_distance_of_two_arrays_is_never_no_number(right, found, db):
    assert sqnr_of(np.array(right), np.array(found)) == pytest.approx(db)
