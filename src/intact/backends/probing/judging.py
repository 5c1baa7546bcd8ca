"""The limits between right and wrong results of questions."""

from __future__ import annotations

from intact.backends.probing.answers import Answer
from intact.backends.probing.probe_job import IDENTICAL

# A result below so many dB is wrong, unless it has 8 bits and is nowhere further off than so many steps of its grid.
LEAST_DB, MOST_STEPS = 33.0, 3.0
# One comparison in ten comes out otherwise: rounding alone may exchange the order of two numbers nearly equal. Where it
# does not as the case stands, one in a hundred is too many.
LEAST_DB_OF_COMPARISONS, LEAST_DB_OF_EXACT_ONES = 10.0, 20.0
# How much worse than the case as it stands a result has to be.
LOSS_DB = 6.0
# So far from the limits a result is clearly right.
CLEAR_DB, CLEAR_STEPS = LEAST_DB + LOSS_DB, MOST_STEPS / 2


def is_wrong(answer: Answer, usual: Answer | None = None, *, output: str) -> bool:
    """True if a result, of the type `output`, is wrong, and clearly more so than the usual one of its case."""
    if answer.sqnr_db is None:
        return False
    if _has_8_bits(output) and answer.steps is not None and answer.steps <= MOST_STEPS:
        return False
    worse = usual is None or usual.sqnr_db is None or answer.sqnr_db < usual.sqnr_db - LOSS_DB
    least = LEAST_DB
    if output == "bool":
        exact = usual is not None and usual.sqnr_db is not None and usual.sqnr_db >= IDENTICAL
        least = LEAST_DB_OF_EXACT_ONES if exact else LEAST_DB_OF_COMPARISONS
    return answer.sqnr_db < least and worse


def is_clear(answer: Answer, *, output: str) -> bool:
    """True if a result, of the type `output`, is right, and far from the limits."""
    if answer.sqnr_db is None:
        return False
    few = _has_8_bits(output) and answer.steps is not None and answer.steps <= CLEAR_STEPS
    return few or answer.sqnr_db >= CLEAR_DB


def _has_8_bits(output: str) -> bool:
    return output in ("uint8", "int8")
