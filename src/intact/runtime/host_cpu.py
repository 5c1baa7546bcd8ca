"""Tell if the CPU of this machine multiplies bytes without saturating, which no table can say."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

# avx_vnni stands on client processors, avx512_vnni on servers; AMX works on int32 accumulators as well.
_FLAGS = frozenset(("avx512_vnni", "avx_vnni", "amx_int8"))
_CPUINFO = Path("/proc/cpuinfo")


@cache
def adds_pairs_in_16_bits() -> bool:
    """True if kernels for uint8 x int8 saturate on this machine: x86 without VNNI, or an unknown processor."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    lines = _CPUINFO.read_text(encoding="utf-8").splitlines() if _CPUINFO.is_file() else ()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return _FLAGS.isdisjoint(flags.split())
