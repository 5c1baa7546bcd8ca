"""The integer types of grids, by name: how many bits they have, where they end, and their middle."""

from __future__ import annotations

import re
from functools import cache

GRID_TYPES = ("uint8", "int8", "uint16", "int16", "uint4", "int4", "int2", "int32")
"""The types that a grid may have here; tables of targets and files of others know more."""

FLOAT_BITS = 32
_NAME = re.compile(r"(u?)int(\d+)")


def bits(dtype: str) -> int:
    """The number of bits of an integer type."""
    return _parsed(dtype)[1]


def width(dtype: str) -> int:
    """The bits of a type, where all floats count as the widest."""
    return FLOAT_BITS if "float" in dtype or dtype == "double" else bits(dtype)


@cache
def limits(dtype: str) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    signed, width = _parsed(dtype)
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)


def middle(dtype: str) -> int:
    """The zero point of a symmetric grid: 0 for signed types, half the range for unsigned ones."""
    least, greatest = limits(dtype)
    return (least + greatest + 1) // 2


def _parsed(dtype: str) -> tuple[bool, int]:
    found = _NAME.fullmatch(dtype)
    assert found is not None, f"{dtype!r} is no integer type"
    return not found[1], int(found[2])


INT32_MAX = limits("int32")[1]
BYTE_STEPS = limits("uint8")[1]
"""The steps of a grid of 8 bits: none of its integers is further from the zero point."""
FLOAT32_LEVELS = 2**24
"""Whole numbers up to this are all in float32; beyond it some are missing."""
