"""Errors by layer: each tensor against the right one, with a histogram in short."""

from __future__ import annotations

import numpy as np
import pytest

from intact.numbers.decibels import sqnr_of
from intact.verification.layer_errors import ErrorTally, digits


def test_a_tally_is_the_sqnr_over_all_rows():
    rng = np.random.default_rng(0)
    right = rng.standard_normal((3, 50, 4)).astype(np.float32)
    found = right + np.float32(0.01) * rng.standard_normal(right.shape).astype(np.float32)
    tally = ErrorTally()
    for row in range(3):
        tally.add(right[row], found[row])
    assert tally.sqnr_db == pytest.approx(sqnr_of(right, found), abs=0.01)


def test_equal_tensors_have_no_error():
    tally = ErrorTally()
    tally.add(np.float32([1, 2]), np.float32([1, 2]))
    assert tally.sqnr_db is None


@pytest.mark.parametrize("masked", [-np.inf, float(np.finfo(np.float32).min)])
def test_masks_do_not_hide_the_error_of_the_rest(masked):
    right, found = np.float32([1, 2, masked]), np.float32([1, 2.1, masked])
    tally = ErrorTally()
    tally.add(right, found)
    kept = 2 if np.isinf(masked) else 3
    assert tally.sqnr_db == pytest.approx(sqnr_of(right[:kept], found[:kept]), abs=0.01)


def test_digits_grow_with_the_logarithm_of_counts_and_show_single_values():
    assert digits([0, 1, 1000, 10**6]) == "03vZ"
    assert digits([0, 1, 10**30]) == "01Z"
    assert digits([]) == "" and digits([0, 0]) == "00"
