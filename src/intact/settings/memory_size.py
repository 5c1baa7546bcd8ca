"""Amounts of memory as people write them: 4G, 512M, 1.5GiB."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", re.IGNORECASE)

FORMS = "a number with K, M, G or T behind it (4G is 4 GB, 4Gi is 4 GiB)"


def bytes_of(text: str) -> int:
    """The number of bytes that a text says; ValueError for another text, and for none at all."""
    found = _SIZE.fullmatch(text.strip())
    size = 0 if found is None else int(float(found[1]) * _UNITS[found[2].lower()])
    if size <= 0:
        raise ValueError(f"{text!r} is no amount of memory (allowed: {FORMS})")
    return size


def gigabytes(count: int) -> str:
    """A number of bytes for a message."""
    return f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count / 1e6:.0f} MB"
