"""Reading values from encoding files: each check names the file, the tensor and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from intact.errors import SettingsError
from intact.numbers.integer_types import GRID_TYPES
from intact.quantization.encodings.given import GivenGrid

WIDEST = 32


def wrong(where: str, found: str, allowed: str | None = None) -> SettingsError:
    """The error for an entry that cannot be used."""
    return SettingsError("S161", f"{where}: {found}", allowed=allowed, fix="repair this entry, or take it out")


def field(entry: Any, name: str, where: str) -> Any:
    """The field of an entry, which has to be there."""
    if not isinstance(entry, dict):
        raise wrong(where, f"expected an object, found {type(entry).__name__}")
    if name not in entry:
        raise wrong(where, f"has no {name}; it has {', '.join(entry) or 'nothing'}")
    return entry[name]


def numbers(value: Any, name: str, where: str) -> list[float]:
    """A number, or a list of numbers, as a list."""
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(item, int | float) and not isinstance(item, bool) for item in found):
        raise wrong(where, f"{name} = {value!r}", "a number, or a list of numbers")
    return [float(item) for item in found]


def bits_of(value: Any, where: str) -> int:
    """A bit width."""
    if isinstance(value, int | float) and value in range(1, WIDEST + 1):
        return int(value)
    raise wrong(where, f"bit width {value!r}", f"a whole number from 1 to {WIDEST}")


def dtype_of(value: Any, where: str) -> str:
    """An integer type by name; `QUInt8`, as ONNX Runtime writes it, is `uint8`."""
    name = str(value).removeprefix("QuantType.").lower().removeprefix("q")
    if name not in GRID_TYPES:
        raise wrong(where, f"unknown type {value!r}", ", ".join(GRID_TYPES))
    return name


def flag(value: Any, where: str) -> bool:
    """A truth value, as JSON or, as AIMET has it, as text."""
    if isinstance(value, bool):
        return value
    if value in ("True", "False", "true", "false"):
        return value in ("True", "true")
    raise wrong(where, f"{value!r} is neither true nor false")


def grid(
    bits: int,
    scales: Iterable[float],
    zero_points: Iterable[float],
    where: str,
    *,
    dtype: str | None = None,
    axis: int | None = None,
    constant: bool = False,
) -> GivenGrid:
    """A grid from its numbers, with zero points counted from 0, after a check of each."""
    scale, zero = np.array(list(scales), np.float64), np.array(list(zero_points), np.float64)
    if zero.size == 1:
        zero = np.broadcast_to(zero, scale.shape)
    if scale.shape != zero.shape:
        raise wrong(where, f"{scale.size} scales and {zero.size} zero points", "one zero point per scale")
    with np.errstate(over="ignore"):
        single = scale.astype(np.float32)
    if not (np.isfinite(single) & (single > 0)).all():
        raise wrong(where, f"scale {scale[~(np.isfinite(single) & (single > 0))][0]}", "finite scales above 0")
    if ((zero != np.rint(zero)) | (zero < 0) | (zero > 2.0**bits - 1)).any():
        raise wrong(where, f"a zero point that a grid of {bits} bits does not have (counted from 0: {zero.min():g})")
    return GivenGrid(bits, single, zero.astype(np.int64), dtype, axis, constant)
