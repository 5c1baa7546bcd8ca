"""Results of `debug`: the place where two models, or the CPU and the NPU, part ways, or what does not compile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from intact.glimpse import Glimpse, Sight
from intact.records import dataclass
from intact.search.debug.layers import Layer


@dataclass(frozen=True, slots=True)
class Destination:
    """The folder for the smallest models that show a fault."""

    folder: Path
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class UnitFinding:
    """The distance between CPU and NPU in one unit, named by its first node; `own_db` is None where there is none."""

    node: str
    op: str
    tensor: str
    own_db: float | None
    steps: float | None
    max_abs_error: float
    pattern: str
    cause: Literal["device"] | None


@dataclass(frozen=True, slots=True)
class PartedUnit(UnitFinding):
    """A unit that the NPU computes wrongly: by itself, or only `together` with what is before it."""

    together: bool


@dataclass(frozen=True, slots=True)
class FailingUnit:
    """The last unit of the smallest piece that the compiler fails on; `nodes` are all that it takes to fail."""

    node: str
    op: str
    tensor: str
    cause: Literal["compile"]
    pattern: str
    nodes: Sequence[str]
    error: str


# Layers that are shown at a glance.
_SHOWN = 8


def _sight(found: ModelBisection | DeviceBisection) -> Sight:
    """The layers with the largest errors, and the first at which something parts ways."""
    rows = tuple(
        (layer.node, layer.op, "identical" if layer.own_db is None else f"{layer.own_db:.1f} dB")
        for layer in found.layers[:_SHOWN]
    )
    parted = "nothing parts ways" if found.first is None else f"parts ways at {found.first.node} ({found.first.op})"
    figures = {"layers": str(found.compared), "samples": str(found.samples)}
    return Sight(parted, figures=figures, heads=("layer", "operator", "keeps alone"), rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelBisection(Glimpse):
    """Two models, layer by layer: `layers` by their error, those that part ways, and those whose error is undone."""

    kind: Literal["models"] = "models"
    first: Layer | None
    layers: Sequence[Layer]
    parted: Sequence[str]
    undone: Sequence[Layer]
    compared: int
    samples: int
    repro: str | None
    warnings: Sequence[str]

    def sight(self) -> Sight:
        """The worst layers."""
        return _sight(self)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeviceBisection(Glimpse):
    """A model on the CPU and on the NPU, unit by unit: `layers` by their error, and the tensors that part ways."""

    kind: Literal["device"] = "device"
    target: str
    first: PartedUnit | None
    layers: Sequence[UnitFinding]
    parted: Sequence[str]
    compared: int
    samples: int
    repro: str | None
    warnings: Sequence[str]

    def sight(self) -> Sight:
        """The worst layers."""
        return _sight(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileBisection:
    """A model that does not compile, cut down to what fails; `compiled` counts the attempts."""

    kind: Literal["compile"] = "compile"
    target: str
    first: FailingUnit
    layers: Sequence[UnitFinding] = ()
    compiled: int
    repro: str | None
    warnings: Sequence[str]


Bisection: TypeAlias = ModelBisection | DeviceBisection | CompileBisection
