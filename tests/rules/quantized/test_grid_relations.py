"""Grids compared with each other, at each limit and past it."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.quantized import grid_relations
from tests.rules.quantized.operand_values import computed, constant, on_grid

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


HALF = constant(np.float16(0.5))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (grid(0.5), None),
        (grid([0.5]), None),
        (grid(0.5, None), None),
        (grid(1e-30), None),
        (grid(3e30), None),
        (grid([0.5, 0.25]), "x has 2 numbers, not one constant scale"),
        (grid(computed(F32, ())), "x has a computed number, not one constant scale"),
        (grid(HALF), "the scale of x is float16: integer kernels take float32"),
        (grid(0.0), "the scale of x is 0.0"),
        (grid(-1.0), "the scale of x is -1.0"),
        (grid(np.inf), "the scale of x is inf"),
        (grid(np.nan), "the scale of x is nan"),
        (grid(0.5, U8([1, 2])), "x has 2 numbers, not one constant zero point"),
        (grid(0.5, computed(U8, ())), "x has a computed number, not one constant zero point"),
    ],
)
def test_one_grid_is_one_constant_positive_scale_in_float32_and_one_constant_zero_point(given, reason):
    assert grid_relations.not_one_grid(y=grid(0.5), x=given) == reason


@pytest.mark.parametrize(("dtype", "ends"), [(U8, (0, 255)), (np.int8, (-128, 127)), (np.uint16, (0, 65535))])
def test_every_level_of_a_type_is_there_from_end_to_end(dtype, ends):
    levels = grid_relations.every_level(grid(0.5, None, dtype))
    assert levels.dtype == dtype and np.array_equal(levels.astype(int), np.arange(ends[0], ends[1] + 1))


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
