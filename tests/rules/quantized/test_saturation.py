"""Pairs of products in 16 bits: the largest one, found by trying all, and the limit that it may reach."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from intact.rules.quantized.saturation import SaturationRule, largest_pair, weight_of
from intact.targets.registry import load_target
from tests.rules.quantized.operand_values import computed, on_grid


@pytest.mark.parametrize("shape", [(3, 5), (2, 1), (4, 2), (2, 3, 2)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("low", [-128, 0, -100])
def test_the_largest_pair_is_that_of_any_two_weights_of_a_channel(shape, axis, low):
    weight = np.random.default_rng(0).integers(low, low + 101, shape)
    largest = 0
    for row in np.moveaxis(weight, axis, 0):
        numbers = row.reshape(-1).tolist()
        # Either input may be 0, so that a weight counts alone, too.
        pairs = itertools.chain(itertools.combinations(numbers, 2), ((number, 0) for number in numbers))
        largest = max(largest, *(255 * abs(a + b) for a, b in pairs))
    assert largest_pair(weight, axis) == largest


@pytest.mark.parametrize(("weights", "saturates"), [([64, 64], False), ([64, 65], True), ([-64, -65], True)])
@pytest.mark.parametrize("vnni", [True, False])
def test_pairs_saturate_beyond_16_bits_without_vnni(weights, saturates, vnni):
    rule = SaturationRule().for_target(load_target("cpu", vnni=vnni).rewrite)
    found = rule.pairs_saturate(np.array([weights]), 0)
    assert (found is not None) is (saturates and not vnni)
    assert found is None or "32895, more than 32767" in found


@pytest.mark.parametrize("vnni", [True, False])
def test_a_computed_operand_may_saturate(vnni):
    found = SaturationRule(saturates=not vnni).pairs_saturate(None, 0)
    assert found is None if vnni else "the second operand is computed" in found


def test_kernels_see_an_unsigned_weight_as_signed():
    unsigned, signed = np.array([0, 128, 255], np.uint8), np.array([-128, 127], np.int8)
    assert weight_of(on_grid(unsigned, 1.0)).tolist() == [-128, 0, 127]
    assert weight_of(on_grid(signed, 1.0)).tolist() == [-128, 127]
    assert weight_of(on_grid(computed(np.uint8), 1.0)) is None
