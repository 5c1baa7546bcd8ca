"""Gates: what must hold of a finished build."""

from __future__ import annotations

from collections.abc import Sequence

from intact.results import Accuracy, Gate


def sqnr_gate(rows: Sequence[Accuracy], least: float) -> Gate:
    """Every output of every form has at least `least` dB; identical outputs pass any gate."""
    values = [(row.sqnr_db, row) for row in rows if row.sqnr_db is not None]
    if not values:
        return Gate("min_sqnr", least, None, True, "every output is identical to the original's")
    worst, row = min(values, key=lambda pair: pair[0])
    where = f"{row.output} of the {row.form} model on {row.runtime}"
    return Gate("min_sqnr", least, worst, worst >= least, f"the least SQNR is {worst:.2f} dB, at {where}")
