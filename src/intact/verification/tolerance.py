"""The tolerances that a comparison would pass: each holds, and a tighter one of as many digits does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from intact.records import dataclass
from intact.results import Accuracy
from intact.verification.compare import RTOL


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Gates that hold for every output, and what `numpy.allclose(model, reference)` needs, in two ways.

    SQNR and cosine are None where every output is identical.
    """

    min_sqnr: float | None
    min_cosine: float | None
    max_abs_error: float
    rtol: float
    atol: float


def tolerance(rows: Sequence[Accuracy]) -> Tolerance:
    """The tolerances that all of `rows` hold, rounded to the safe side."""
    noise = [row.sqnr_db for row in rows if row.sqnr_db is not None]
    angles = [row.cosine if row.cosine is not None else 0.0 for row in rows if not row.identical]
    return Tolerance(
        min_sqnr=_below(min(noise), 2) if noise else None,
        min_cosine=_below(min(angles), 6) if angles else None,
        max_abs_error=_above(max((row.max_abs_error for row in rows), default=0.0)),
        rtol=RTOL,
        atol=_above(max((row.atol_beside_rtol or 0.0 for row in rows), default=0.0)),
    )


def _below(value: float, digits: int) -> float:
    if abs(value) >= 1e6:
        return value
    steps = 10.0**digits
    return math.floor(value * steps) / steps


def _above(value: float) -> float:
    """The next number of three significant digits that is not below `value`."""
    if value <= 0:
        return 0.0
    shown = float(f"{value:.2e}")
    return shown if shown >= value else float(f"{value + 10 ** (math.floor(math.log10(value)) - 2):.2e}")
