"""The integer types of grids, against numpy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from intact.numbers.integer_types import GRID_TYPES, bits, limits, middle


@pytest.mark.parametrize("dtype", [*GRID_TYPES, "uint2"])
def test_types_end_where_their_numbers_do(dtype):
    known = ml_dtypes.iinfo(getattr(ml_dtypes, dtype, dtype))
    assert (bits(dtype), limits(dtype)) == (known.bits, (known.min, known.max))


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 128), ("int8", 0), ("uint16", 32768), ("uint4", 8), ("int2", 0)])
def test_the_middle_is_zero_of_signed_types_and_half_of_others(dtype, zero):
    assert middle(dtype) == zero


@pytest.mark.parametrize("dtype", ["float", "unknown", "int", np.dtype(np.float32).name])
def test_what_is_no_integer_type_has_no_limits(dtype):
    with pytest.raises(AssertionError, match="no integer type"):
        limits(dtype)
