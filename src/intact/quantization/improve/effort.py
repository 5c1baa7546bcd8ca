"""The work that the accuracy algorithms may do."""

from __future__ import annotations

from dataclasses import field

from intact.events import Events, Silence
from intact.quantization.improve.coarse_scales import COARSE
from intact.quantization.stopwatch import Stopwatch
from intact.records import dataclass

_FEWEST_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class Depth:
    """The share of the inputs of layers that is looked at.

    `columns_per_input` is how many columns second moments are taken of, per input that is treated together; `together`
    is how many those are at most, since moments take memory and time that grow with their square and cube. Both are
    larger where weights have so few bits that making up for their errors matters more (`…_coarse`);
    `directions` is in how many random sums of a layer's outputs the trial of grids looks at their change.
    """

    columns_per_input: int
    columns_per_input_coarse: int
    together: int
    together_coarse: int
    directions: int

    def block(self, dtype: str) -> int:
        """The number of inputs that are treated together at most, for weights of a type."""
        return self.together_coarse if dtype in COARSE else self.together

    def columns(self, inputs: int, rows: int, dtype: str) -> int:
        """The number of columns, of a layer with so many inputs and weights of a type, to look at in each of `rows`."""
        each = self.columns_per_input_coarse if dtype in COARSE else self.columns_per_input
        return max(_FEWEST_COLUMNS, each * min(inputs, self.block(dtype)) // max(rows, 1))


# Sixteen times the columns, and twice or more of the inputs, gained nothing on held-back rows of seven networks at 8
# bits, nor eight times the columns of five at 4 bits; half of the inputs lose on some.
NORMAL = Depth(columns_per_input=2, columns_per_input_coarse=4, together=256, together_coarse=2048, directions=32)


@dataclass(frozen=True, slots=True)
class Effort:
    """The receiver of progress, and the stopwatch that runs.

    `run_seconds` is how long one run over the calibration data took: what the rest will take is told beforehand.
    """

    run_seconds: float = 0.0
    events: Events = field(default_factory=Silence)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
