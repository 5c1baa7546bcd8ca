"""The plan of a quantization: which tensors get which grid, before their ranges are known."""

from __future__ import annotations

from collections.abc import Mapping

from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """A closed interval of real values that a grid has to cover."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PlannedGrid:
    """A grid that is to be chosen from what is observed, unless `fixed` or `range` says it already."""

    dtype: str
    symmetric: bool
    method: str
    fixed: tuple[float, int] | None = None
    range: Range | None = None
    bounded: bool = False
    """True if an operator cuts its values off: room for more would never be used."""
    bounds: Range | None = None
    """All values that it can have, as far as operators tell and room is asked for: a 16-bit grid holds them."""
    reach: float = 0.0
    """The least distance from zero to which a 16-bit grid reaches on both sides, seen or not."""
    headroom: float = 0.25
    """The share that a 16-bit grid reaches at least beyond what was seen."""
    least_scale: float = 0.0
    """A device computes something else where the scale is less; the grid is widened up to it."""
    is_result: bool = False
    """True of an output that a 16-bit grid may leave much room for, where few of its values were seen."""
    room_above: float = 0.0
    """The share of what was seen that a grid reaches above it: one score that is cut off there costs a whole row."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """A constant input of a node that gets its own integers: per channel along `axis`, or per tensor if None."""

    node: str
    index: int
    tensor: str
    dtype: str
    symmetric: bool
    axis: int | None


@dataclass(frozen=True, slots=True)
class BiasPlan:
    """A constant int32 input whose scale is that of input 0 times that of the weight."""

    node: str
    index: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """A second grid on a tensor, for the node inputs in `readers`, which want another type than it is written in."""

    tensor: str
    readers: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class QuantPlan:
    """The grids of tensors. Tensors that name the same grid share it.

    `nodes` are the nodes to quantize with the type of their activations. `tensors` maps a tensor, or an entry of
    `conversions`, to its grid. `uses` maps a node to the inputs of it that read from a grid. `observed` are the
    entries whose values decide the grids: one that only moves values of another decides nothing.
    """

    nodes: Mapping[str, str]
    grids: Mapping[str, PlannedGrid]
    tensors: Mapping[str, str]
    uses: Mapping[str, tuple[int, ...]]
    weights: tuple[WeightPlan, ...]
    biases: tuple[BiasPlan, ...]
    conversions: Mapping[str, Conversion]
    observed: tuple[str, ...]

    def entry(self, tensor: str, node: str, index: int) -> str:
        """The entry of `tensors` that an input of a node reads a tensor from."""
        prefix = f"{tensor}:"
        return next(
            (
                entry
                for entry in (f"{prefix}{dtype}" for dtype in ("uint8", "int8", "uint16", "int16"))
                if entry in self.conversions and (node, index) in self.conversions[entry].readers
            ),
            tensor,
        )

    def source(self, entry: str) -> str:
        """The tensor that an entry of `tensors` is about."""
        return self.conversions[entry].tensor if entry in self.conversions else entry
