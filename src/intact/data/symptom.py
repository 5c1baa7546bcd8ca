"""A fact about inputs that a sound data set would not show."""

from __future__ import annotations

from typing import Literal

from intact.records import dataclass

SymptomKind = Literal[
    "constant", "repeated", "mismatch", "range", "scale", "saturation", "mask", "ids", "layout", "overlap"
]


@dataclass(frozen=True, slots=True)
class Symptom:
    """A fact about inputs that a sound data set would not show.

    `message` is one sentence: what was found, what is expected, what to do. `doubtful` symptoms make the accuracy
    of a build doubtful; the others are worth a warning only.
    """

    kind: SymptomKind
    input: str
    message: str
    doubtful: bool
