"""Grids compared with each other, at each limit and past it."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.quantized import grid_relations
from tests.rules.quantized.operand_values import computed, on_grid

U8, F32 = np.uint8, np.float32
MIDDLE = U8(128)


def grid(scale, zero=MIDDLE, dtype=U8, **places):
    return on_grid(computed(dtype), scale, zero, **places)


@pytest.mark.parametrize(
    ("scale", "usable"),
    [
        (2.0**100, True),
        (2.0**101, False),
        (2.0**-100, True),
        (2.0**-101, False),
        ([0.1, 2.0**100], True),
        ([0.1, 2.0**101], False),
        ([2.0**-101, 0.1], False),
        ([0.1, np.nan], False),
    ],
)
def test_scales_that_float32_would_lose_are_refused(scale, usable):
    found = grid_relations.unusable(grid(scale))
    assert found is None if usable else "is not between" in found


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (grid(F32(0.1)), None),
        (grid([F32(0.1)]), None),
        (grid(0.2), "the scales differ (0.1 and 0.2)"),
        (grid(0.1, U8(127)), "the zero points differ ([128] and [127])"),
        (grid(0.1, np.int8(0), np.int8), "the types differ (uint8 and int8)"),
        (grid([0.1, 0.2, 0.3]), "the scales differ (0.1 and 0.1, 0.2, 0.3)"),
        (grid([0.1, 0.2, 0.3, 0.4]), "the scales differ (0.1 and 0.1, 0.2, 0.3, …)"),
    ],
)
def test_grids_differ_in_type_scale_or_zero_point(other, reason):
    assert grid_relations.different(grid(0.1), other) == reason


def test_several_scales_lie_along_one_axis():
    first, second = (grid([0.1, 0.2], np.array([1, 2], U8), axis=axis) for axis in (0, 1))
    assert grid_relations.different(first, first) is None
    assert grid_relations.different(first, second) == "the axes of the scales differ (0 and 1)"


@pytest.mark.parametrize(
    ("middle", "result", "reason"),
    [
        (grid(1.0), grid(1.0), None),
        (grid(2.0), grid(1.0), None),
        (grid(2.001), grid(1.0), "is more than 2 times the output scale"),
        (grid(1.9999), grid(1.0), "close enough to 2 for a value to move by 2"),
        (grid(1.999), grid(1.0), None),
        # A grid may end one step of the output before it, and no more.
        (grid(1.0, U8(127)), grid(1.0, U8(128)), None),
        (grid(1.0, U8(126)), grid(1.0, U8(128)), "the intermediate grid covers -126 to 129"),
        (grid(1.0, U8(129)), grid(1.0, U8(128)), None),
        (grid(1.0, U8(130)), grid(1.0, U8(128)), "the intermediate grid covers -130 to 125"),
    ],
)
def test_a_grid_in_between_is_fine_and_wide_enough(middle, result, reason):
    found = grid_relations.not_covered(middle, result)
    assert found is None if reason is None else reason in found
