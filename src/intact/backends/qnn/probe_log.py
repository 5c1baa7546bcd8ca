"""Reasons of the library for refusing questions of a probe, which are in its log only."""

from __future__ import annotations

from collections.abc import Mapping

from intact.backends.probing.models import PROBED
from intact.backends.qnn import log as qnn_log
from intact.targets import provider_placement

# Lines of a log that follow this one are about the question that it names.
MARK = "intact-probe"


def reasons(log: str) -> dict[int, str]:
    """The reason against each refused question, by its number, from the log between its marks."""
    sections = log.split(f"{MARK} ")[1:]
    found: dict[int, str] = {}
    for section in sections:
        number, _, text = section.partition("\n")
        if number.isdecimal():
            found[int(number)] = _reason(qnn_log.reasons(text.split(MARK)[0]))
    return found


def _reason(found: Mapping[str, str]) -> str:
    """The reason against the operator itself, or else against a constant of it."""
    own = {provider_placement.known_name(name, {PROBED: ""}): reason for name, reason in found.items()}
    if PROBED in own:
        return own[PROBED]
    return next(
        (reason for reason in found.values() if "graph input" not in reason and "graph output" not in reason), ""
    )
