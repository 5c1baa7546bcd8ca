"""Weights of nine bits as sums of smaller ones: every number, the greatest and the least of each part."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.quantized import copies


@pytest.mark.parametrize("bits", [8, 4])
def test_a_signed_type_holds_its_ends_and_nothing_beyond(bits):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    assert copies.fits(np.array([low, high]), bits) and copies.fits(np.zeros(0), bits)
    assert not copies.fits(np.array([low - 1]), bits) and not copies.fits(np.array([high + 1]), bits)


def test_a_byte_is_meant_unless_another_type_is_named():
    assert copies.fits(np.array([-128, 127])) and not copies.fits(np.array([128]))
    assert not copies.fits(np.array([-129]))


@pytest.mark.parametrize("bits", [8, 4])
def test_two_parts_hold_every_number_but_the_greatest_which_needs_three(bits):
    greatest = 2**bits - 1
    for numbers, count in ((np.arange(-greatest, greatest), 2), (np.arange(-greatest, greatest + 1), 3)):
        parts = copies.split(numbers, bits)
        assert len(parts) == count and all(copies.fits(part, bits) for part in parts)
        np.testing.assert_array_equal(sum(parts), numbers)


def test_four_parts_are_small_enough_for_pairs_of_products_in_16_bits():
    numbers = np.arange(-255, 256)
    parts = copies.split_small(numbers)
    assert len(parts) == 4 and max(np.abs(part).max() for part in parts) <= 64
    np.testing.assert_array_equal(sum(parts), numbers)


def test_channels_of_each_group_are_repeated_within_it():
    assert copies.copy_indices(2, 3, 2).tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
