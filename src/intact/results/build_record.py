"""The record of a build, as its manifest has it: stages, rewrites, accuracy, gates, verdict, search and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypedDict

from intact.glimpse import Glimpse, Sight
from intact.json_types import Json
from intact.records import dataclass
from intact.results.model_facts import Cost, CostEstimate, MappedLayer, Placement


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
    estimate: CostEstimate | None = None

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
