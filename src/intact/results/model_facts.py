"""Facts about a model: the content of its file, where its nodes run, at what cost, and what a target refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from intact.records import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One requirement of a target that one node does not meet."""

    node: str
    op: str
    requirement: str
    found: str
    source: str
    fix: str
    code: str = "T100"

    def __str__(self) -> str:
        return (
            f"[{self.code}] {self.node} ({self.op}): {self.found}\n"
            f"  requires: {self.requirement}\n  source: {self.source}\n  fix: {self.fix}"
        )


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node and where it runs; `reason` says why it is not on the NPU."""

    name: str
    op: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer that a compiler made of some nodes: its kind, kernel and the precision it runs in (`u8`, `f32` …).

    `cycles` and `moved_bytes`, to and from memory, are the compiler's own estimates, where it gives them.
    """

    kind: str
    kernel: str
    precision: str
    nodes: tuple[str, ...]
    cycles: int | None = None
    moved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a compiled model as its compiler estimates it; nothing of it was measured.

    `milliseconds` are the cycles at the clock of the chip, where that is known.
    """

    cycles: int
    weight_bytes: int | None = None
    activation_bytes: int | None = None
    milliseconds: float | None = None


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The cost of a deployed model as a share of that in float on the same device; nothing of it was measured.

    It follows from multiply-adds and bytes at the prices of the device's table, which is the `source`. `float_bits` are
    those of a float there. Nodes on the CPU are not in it.
    """

    ratio: float
    float_bits: int
    source: str

    @property
    def unit(self) -> str:
        """The cost that it is a share of, in words."""
        return f"the cost in float{self.float_bits} on this device"

    @property
    def rule(self) -> str:
        """The rule that it follows from, without the place where that is written."""
        return self.source.rpartition("[cost], ")[2]


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes on the NPU, those that are not, and the number of pieces in which the NPU gets the model.

    Where the device is not on this machine, nothing of that is `known`. `place` is what has the place of the NPU where
    a toolchain is for other devices too; `layers` are what runs there, in order, where the toolchain tells.
    """

    npu_nodes: tuple[PlacedNode, ...]
    cpu_nodes: tuple[PlacedNode, ...]
    partitions: int
    known: bool = True
    place: str = "NPU"
    layers: tuple[PlacedLayer, ...] = ()

    @property
    def has_npu(self) -> bool:
        """True if the model is compiled for an NPU; a machine may have several (`NPU.1`)."""
        return self.place.split(".")[0] == "NPU"


@dataclass(frozen=True, slots=True)
class MappedLayer:
    """A node of the deployed model: the types that it computes in, the grid of its result, and the layers it reads.

    `reads` are places in the list of layers; `scale` and `zero_point` are None where the result is on no one grid.
    `quantizer` names the QuantizeLinear that puts the result on its grid, where there is one.
    """

    name: str
    op: str
    activations: str
    weights: str | None
    reads: tuple[int, ...] = ()
    scale: float | None = None
    zero_point: int | None = None
    quantizer: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node by its name and operator."""

    name: str
    op: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """The compute nodes of a model on a target, by its table or its library: on the NPU, off it, and in float.

    `doubts` are about nodes that it takes, and is known to compute wrongly.
    """

    target: str
    soc: str | None
    has_npu: bool
    method: Literal["library", "table"]
    compute_nodes: int
    npu_percent: float
    partitions: int
    npu_nodes: tuple[NodeFacts, ...]
    cpu_nodes: tuple[PlacedNode, ...]
    float_nodes: tuple[NodeFacts, ...]
    doubts: tuple[Violation, ...] = ()


class InspectedPort(TypedDict):
    """An input or output as its model's file says; a free dimension is text."""

    name: str | None
    dtype: str | None
    shape: list[int | str] | None


@dataclass(frozen=True, slots=True)
class InspectedModel:
    """The content of a model file; `quantized` says what is quantized in it, None for a float model."""

    path: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: Sequence[InspectedPort]
    outputs: Sequence[InspectedPort]
    free_dims: list[str]
    nodes: int
    operators: dict[str, int]
    weight_bytes: int
    nonfinite_weights: list[str]
    quantized: str | None
