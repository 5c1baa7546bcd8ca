"""Values that stages hand on. Frozen: no stage writes into an earlier result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from intact.glimpse import Glimpse, Sight
from intact.json_types import Json


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
    least_scale: float = 0.0
    """A device computes something else where the scale is less; the grid is widened up to it."""


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


@dataclass(frozen=True, slots=True)
class Application:
    """One firing of a rewrite rule, for the manifest and the report."""

    rule: str
    node: str
    exactness: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that matched a node but would not fire, and why."""

    rule: str
    node: str
    reason: str


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

    `cycles` are the compiler's own estimate, where it gives one.
    """

    kind: str
    kernel: str
    precision: str
    nodes: tuple[str, ...]
    cycles: int | None = None


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
class LayerError:
    """The error of a tensor that a QuantizeLinear puts on a grid, as SQNR in dB; None is none at all.

    `own_db` is what its node adds, fed with the float model's tensors and put on its grid; `accumulated_db` is the
    error of the tensor in the whole model. The grid holds `low` to `high`; calibration saw `seen_low` to `seen_high`,
    and the grid cuts off the share `cut_off` of that. `histogram` has a height for each of equal bins between the two,
    as a digit or letter: 0 for no value, then 1–9, a–z, A–Z in equal steps of the logarithm of the count.
    """

    node: str
    op: str
    tensor: str
    quantizer: str
    dtype: str
    own_db: float | None
    accumulated_db: float | None
    low: float
    high: float
    seen_low: float | None = None
    seen_high: float | None = None
    cut_off: float | None = None
    histogram: str = ""


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


class RuleCount(TypedDict):
    """The number of times that a rule fired, with its claim."""

    rule: str
    exactness: str
    count: int


class RequantizedWeight(TypedDict):
    """A layer whose weight got another grid, with the SQNR in dB that each of its channels keeps."""

    node: str | None
    weight_sqnr_db: list[float | None]


class RewriteCheck(TypedDict):
    """The outcome of running a model before and after rewriting; `steps_moved` is by rule."""

    validation_samples: int
    validated_rewrites: int
    rewriting_identical: bool
    rewriting_sqnr_db: float | None
    steps_moved: dict[str, float]
    kernels_saturate: bool


class TypeCount(TypedDict):
    """Nodes that compute in the same types, by their operators; `weights` is None where they have none."""

    activations: str
    weights: str | None
    nodes: int
    ops: dict[str, int]


class QuantizeFigures(TypedDict):
    """Figures of the stage that quantizes."""

    nodes_quantized: int
    types: list[TypeCount]
    kept_in_float32: dict[str, str]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the pipeline as it went; `details` are figures of its own."""

    name: str
    status: Literal["ran", "skipped"]
    reason: str = ""
    seconds: float = 0.0
    details: Mapping[str, object] = field(default_factory=dict)


Form = Literal["original", "upgraded", "float", "quantized", "rewritten", "compiled"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The difference of one output of one form from the original model, over the test inputs.

    Where an output is scores of classes, `top1_agreement` is the share of rows with the same best class, and
    `top5_agreement` that of rows whose best class of the original is among the five best. `atol_beside_rtol` is the
    least absolute tolerance with which the outputs are close (as numpy means it) at a relative one of 1 %.
    `clear_decisions` are those whose two best scores lie further apart than the RMS error, and `clear_agreement` is the
    share of them with the same best class. `nonfinite` counts values that are infinite or no number where the
    original's are finite; `constant` says that all values are one, `unmoved` that all rows give the same, where the
    original's differ; `silent` that the original is zero throughout. `equal` counts the equal ones of the `elements`
    of an output that holds classes, indices or decisions.
    """

    form: Form
    runtime: str
    output: str
    sqnr_db: float | None
    identical: bool
    cosine: float | None
    max_abs_error: float
    mean_abs_error: float
    top1_agreement: float | None = None
    top5_agreement: float | None = None
    atol_beside_rtol: float | None = None
    clear_decisions: int = 0
    clear_agreement: float | None = None
    nonfinite: int = 0
    constant: bool = False
    unmoved: bool = False
    silent: bool = False
    elements: int = 0
    equal: int | None = None


@dataclass(frozen=True, slots=True)
class TaskAccuracy:
    """The number of labels that one form of a model got right by one of its outputs."""

    form: Form
    runtime: str
    output: str
    correct: int
    total: int
    accuracy: float


@dataclass(frozen=True, slots=True)
class Gate:
    """Something that the user asked to hold of the build, whether it does, and what to try where it does not."""

    name: str
    limit: float
    value: float | None
    passed: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an exported model: the repository and its commit, what it was loaded as, and with what.

    `sqnr_db` is its least distance from torch, None if there is none. `images` are the mean and the deviation of
    pixels that its own image processor uses, empty where nothing says them; None: it takes no images.
    """

    name: str
    commit: str | None
    task: str
    task_is_known: bool
    architecture: str
    config_sha256: str
    versions: Mapping[str, str]
    sqnr_db: float | None
    images: Mapping[str, object] | None = None


# The kind of the artifact that an application loads.
DEPLOYABLE = "deployable model"
# Of a file that belongs to it.
BINARY = "binary of the model"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of the output folder; `path` is relative to it."""

    path: str
    kind: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SearchPoint:
    """One assignment of precisions: its cost as a share of all in 8 bits, and its least SQNR in dB.

    `groups` says how many groups of nodes have each precision. `measured_db` is from the CPU, `compiled_db` from the
    device or its simulator; None where it was not run, or where nothing differs from the original.
    """

    cost: float
    predicted_db: float
    groups: Mapping[str, int]
    measured_db: float | None = None
    compiled_db: float | None = None
    passed: bool | None = None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The least SQNR in dB of the outputs where one group of nodes alone has the lowest precision."""

    nodes: tuple[str, ...]
    sqnr_db: float


@dataclass(frozen=True, slots=True)
class Search:
    """The search for mixed precision: the curve of accuracy against cost, cheapest first, and the point taken.

    `uniform` are the costs of having everything in one precision; `worst` are the groups that cost the most accuracy.
    """

    points: tuple[SearchPoint, ...]
    chosen: int
    uniform: Mapping[str, float]
    worst: tuple[Sensitivity, ...]
    cost_source: str


Word = Literal["good", "passed", "unverified", "suspect", "failed", "broken"]
# The words that end a command with status 1.
FORBIDDING: tuple[Word, ...] = ("failed", "broken")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word about a result, and the sentences that led to it; the worst comes first."""

    word: Word
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if nothing forbids deployment."""
        return self.word not in FORBIDDING


def decibels_shown(rows: Sequence[Accuracy]) -> str:
    """The least SQNR of some outputs, as people read it."""
    found = [row.sqnr_db for row in rows if row.sqnr_db is not None]
    return f"{min(found):.2f} dB" if found else "identical" if rows else "not compared"


@dataclass(frozen=True, slots=True, repr=False)
class Build(Glimpse):
    """Everything about a build; the manifest is this, written down."""

    source_path: str
    source_sha256: str
    source_opset: int
    config: Mapping[str, Json]
    environment: Mapping[str, str]
    calibration_kind: str
    calibration_samples: int
    calibration_sha256: str | None
    stages: tuple[Stage, ...]
    rewrites: tuple[Application, ...]
    placement: Placement
    io: tuple[Mapping[str, object], ...]
    accuracy: tuple[Accuracy, ...]
    gates: tuple[Gate, ...]
    artifacts: tuple[Artifact, ...]
    warnings: tuple[str, ...]
    task_accuracy: tuple[TaskAccuracy, ...] = ()
    search: Search | None = None
    origin: Origin | None = None
    verdict: Word = "unverified"
    verdict_reasons: tuple[str, ...] = ()
    layers: tuple[MappedLayer, ...] = ()
    errors: tuple[LayerError, ...] = ()
    source_weight_bytes: int | None = None
    cost: Cost | None = None

    @property
    def judged(self) -> Verdict:
        """The verdict with its reasons."""
        return Verdict(self.verdict, self.verdict_reasons)

    @property
    def passed(self) -> bool:
        """True if nothing forbids deployment: neither a gate nor the verdict."""
        return self.judged.passed

    def sight(self) -> Sight:
        """The head of the report: the verdict, the share on the NPU, accuracy and size of what is deployed."""
        forms: dict[Form, list[Accuracy]] = {}
        for row in self.accuracy:
            forms.setdefault(row.form, []).append(row)
        last = list(forms.values())[-1] if forms else []
        # The binary of a model belongs to what is deployed.
        needed = sum(file.bytes for file in self.artifacts if file.kind in (DEPLOYABLE, BINARY))
        compiled = self.config.get("compile")
        device = compiled.get("device", "") if isinstance(compiled, Mapping) else ""
        figures = {
            "on the NPU": self._placed(),
            "accuracy": decibels_shown(last),
            "size": f"{needed / 1000:.1f} KB",
            "warnings": str(len(self.warnings)),
        }
        rows = tuple((form, row.output, decibels_shown([row])) for form, found in forms.items() for row in found)
        return Sight(
            f"{self.source_path} for {device} in {self.config.get('precision')}",
            self.verdict,
            figures,
            ("form", "output", "SQNR"),
            rows,
            self.verdict_reasons,
        )

    def _placed(self) -> str:
        """The compute nodes on the NPU, of all; Q/DQ compute nothing."""
        on, off = (
            sum(node.op not in ("QuantizeLinear", "DequantizeLinear") for node in nodes)
            for nodes in (self.placement.npu_nodes, self.placement.cpu_nodes)
        )
        return f"{on} of {on + off} nodes" if self.placement.partitions else "none: it has no NPU"
