"""Numbers as a reader of the report sees them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from intact.results import TypeCount

MISSING = "–"
# `verify` writes the most negative float32 where there is no signal, or no end to the noise.
NO_SIGNAL_DB = -1e30
_FLOATS = ("float", "float16", "bfloat16", "double")


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def decibels(value: float) -> str:
    """An SQNR with two decimals."""
    return "−∞" if value < NO_SIGNAL_DB else f"{value:.2f}"


def figure(value: float | None, form: str = ".4g") -> str:
    """A number in the given form, or a dash."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")
    return format(value, form).rstrip(".") if value != 0 else "0"


def share(value: float | None) -> str:
    """A share of one in per cent, or a dash; only a whole one is 100 %."""
    if value is None:
        return MISSING
    return f"{min(100 * value, 99.9) if value < 1 else 100:.1f}\N{NO-BREAK SPACE}%"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 1:
        return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def size(count: int) -> str:
    """A number of bytes in decimal units."""
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def types_in_words(groups: Sequence[TypeCount]) -> str:
    """A census in one line: `17 uint8 × int8, 4 uint16; 2 in float`."""
    floats = [group for group in groups if _is_float(group)]
    text = ", ".join(f"{group['nodes']} {_pair(group)}" for group in groups if group not in floats)
    counts: Counter[str] = Counter()
    for group in floats:
        counts[group["activations"]] += group["nodes"]
    rest = ", ".join(f"{count} in {dtype}" for dtype, count in counts.most_common())
    return "; ".join(part for part in (text, rest) if part)


def quantized_nodes(groups: Sequence[TypeCount]) -> int:
    """The number of nodes that have integers for activations or weights."""
    return sum(group["nodes"] for group in groups if not _is_float(group))


def _is_float(group: TypeCount) -> bool:
    return group["activations"] in _FLOATS and (group["weights"] is None or group["weights"] in _FLOATS)


def _pair(group: TypeCount) -> str:
    return group["activations"] if group["weights"] is None else f"{group['activations']} × {group['weights']}"
