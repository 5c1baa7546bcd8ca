"""Reading values from encoding files: each check names the file, the tensor and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from intact.errors import SettingsError
from intact.numbers.integer_types import GRID_TYPES
from intact.quantization.encodings.given import GivenGrid

WIDEST = 32

# An object of a file, whose values are yet to be checked.
Entry = Mapping[str, object]


def wrong(where: str, found: str, allowed: str | None = None) -> SettingsError:
    """The error for an entry that cannot be used."""
    return SettingsError("S161", f"{where}: {found}", allowed=allowed, fix="repair this entry, or take it out")


def entry_of(value: object, where: str) -> Entry:
    """An object."""
    if not isinstance(value, dict):
        raise wrong(where, f"expected an object, found {type(value).__name__}")
    return value


def list_of(value: object, where: str) -> list[object]:
    """A list."""
    if not isinstance(value, list):
        raise wrong(where, f"expected a list, found {type(value).__name__}")
    return value


def field(entry: Entry, name: str, where: str) -> object:
    """The field of an entry, which has to be there."""
    if name not in entry:
        raise wrong(where, f"has no {name}; it has {', '.join(entry) or 'nothing'}")
    return entry[name]


def numbers(value: object, name: str, where: str) -> list[float]:
    """A number, or a list of numbers, as a list."""
    given = value if isinstance(value, list) else [value]
    found = [float(item) for item in given if isinstance(item, int | float) and not isinstance(item, bool)]
    if not found or len(found) != len(given):
        raise wrong(where, f"{name} = {value!r}", "a number, or a list of numbers")
    return found


def bits_of(value: object, where: str) -> int:
    """A bit width."""
    if isinstance(value, int | float) and value in range(1, WIDEST + 1):
        return int(value)
    raise wrong(where, f"bit width {value!r}", f"a whole number from 1 to {WIDEST}")


def axis_of(value: object, where: str) -> int:
    """A number of a dimension."""
    if isinstance(value, int | float) and float(value).is_integer():
        return int(value)
    raise wrong(where, f"axis {value!r}", "a whole number")


def dtype_of(value: object, where: str) -> str:
    """An integer type by name; `QUInt8`, as ONNX Runtime writes it, is `uint8`."""
    name = str(value).removeprefix("QuantType.").lower().removeprefix("q")
    if name not in GRID_TYPES:
        raise wrong(where, f"unknown type {value!r}", ", ".join(GRID_TYPES))
    return name


def flag(value: object, where: str) -> bool:
    """A truth value, as JSON or, as AIMET has it, as text."""
    if isinstance(value, bool):
        return value
    if value in ("True", "False", "true", "false"):
        return value in ("True", "true")
    raise wrong(where, f"{value!r} is neither true nor false")


def grid(bits: int, scales: Iterable[float], zero_points: Iterable[float], where: str) -> GivenGrid:
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
    return GivenGrid(bits, single, zero.astype(np.int64))
