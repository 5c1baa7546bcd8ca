"""The content of a target's table: signatures of types, grids, gates. Plain values.

A *signature* lists, for each input and output of an operator, what may stand there. A slot is written as words:

    "uint8"                     this type, one scale for the tensor
    "uint8|uint16"              one of these types
    "int8 constant channel"     a constant weight with one scale per channel (`weight_axis`)
    "int4 constant channel only"  the same, and one scale for the whole weight is not taken
    "int4 constant block"       a constant weight with one scale per block
    "uint16 symmetric"          the zero point is the middle of the type (0 for signed types)
    "float", "index", "bool"    not quantized: float (single, double or half), integer or boolean values
    "real"                      float, or integers of 4 to 16 bits on one grid, which are made floats first
    "any"                       whatever stands there

`...` as the last input means that the one before it may repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from intact.errors import SettingsError
from intact.numbers.integer_types import width

QUANTIZED = ("uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2", "int32")
UNQUANTIZED = ("float", "real", "index", "bool", "any")
MADE_FLOAT = ("uint8", "int8", "uint16", "int16", "uint4", "int4")
GRANULARITIES = ("tensor", "channel", "block")
# A predicate as `check`, and its arguments (see `predicates`).
Requirement = Mapping[str, object]
# A predicate that float rules look for: they join dimensions of which there are too many.
MOST_DIMENSIONS = "dimensions_at_most"
# The type of a value that no shape inference could tell.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Slot:
    """The values that one input or output of an operator takes."""

    types: tuple[str, ...]
    constant: bool = False
    symmetric: bool = False
    granularity: str = "tensor"
    only: bool = False

    @classmethod
    def parse(cls, text: str) -> Slot:
        """A slot from its words; unknown words are refused."""
        types, *words = text.split()
        unknown = [t for t in types.split("|") if t not in QUANTIZED + UNQUANTIZED]
        unknown += [w for w in words if w not in ("constant", "symmetric", "only", *GRANULARITIES)]
        if unknown:
            raise SettingsError("S120", f"slot {text!r}: unknown word {unknown[0]!r}", allowed=", ".join(QUANTIZED))
        granularity = next((w for w in words if w in GRANULARITIES), "tensor")
        return cls(tuple(types.split("|")), "constant" in words, "symmetric" in words, granularity, "only" in words)

    def __str__(self) -> str:
        words = ["|".join(self.types)]
        words += ["constant"] if self.constant else []
        words += ["symmetric"] if self.symmetric else []
        words += [self.granularity] if self.granularity != "tensor" else []
        words += ["only"] if self.only else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Signature:
    """One accepted combination of inputs and outputs, from the architecture `arch` on.

    `require` are further requirements (see `predicates`). `runs` says whether the device computes on the integers
    as they are, or in float between conversions of its own.
    """

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    repeats: bool
    arch: int
    source: str
    require: tuple[Requirement, ...] = ()
    runs: Literal["integer", "float"] = "integer"

    def input(self, index: int) -> Slot | None:
        """The slot of input `index`, or None where the operator has no such input."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.repeats else None

    def output(self, index: int) -> Slot:
        """The slot of output `index`; outputs beyond those listed are like the last."""
        return self.outputs[min(index, len(self.outputs) - 1)]

    def __str__(self) -> str:
        inputs = ", ".join(map(str, self.inputs)) + (", …" if self.repeats else "")
        return f"({inputs}) → {', '.join(map(str, self.outputs))}"


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of a weight that holds its output channels; it may depend on one attribute."""

    default: int
    attribute: str | None = None
    values: Mapping[int, int] = field(default_factory=dict)

    def at(self, attributes: Mapping[str, int]) -> int:
        """The axis for a node with these integer attributes."""
        return self.values.get(attributes.get(self.attribute or "", 0), self.default)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Everything that a target says about one operator.

    `grid` is `own` (the output has a grid of its own), `input` (it shares the grid of input 0: values move
    but do not change) or `common` (all inputs and the output share one). `start` says that the operator is worth
    quantizing by itself; one that is not is quantized only where its inputs are on a grid already. Scales per
    channel need a weight of rank `channel_rank`, where that is set. `must_share` says that a grid that is not shared
    is an error, `must_fix` in which types a `fixed` output with another zero point (or scale) is one. An operator that
    is `absorbed` only cuts values off: where the grid behind it does that too, it is part of the node before it.
    `group` says when a device takes an operator together with its Q/DQ nodes, so that no signature that runs in
    float applies: where all types agree, where those of the first input and the output do, or never. What does not
    meet `right` is taken, and computed wrongly. What is `joined_alone` stays on its grid where nothing else on grids
    reads it and a chip has no half precision, if all that it joins is about as large.
    """

    op: str
    domain: str
    signatures: tuple[Signature, ...]
    grid: Literal["own", "input", "common"]
    start: bool
    weight_axis: Axis
    channel_rank: int | None
    fixed: Mapping[str, tuple[float, int]]
    require: tuple[Requirement, ...]
    source: str
    must_share: bool = True
    must_fix: Mapping[str, str] = field(default_factory=dict)
    absorbed: bool = False
    group: Literal["all", "first", "never"] = "all"
    right: tuple[Requirement, ...] = ()
    joined_alone: bool = False

    def must_have_fixed(self, dtype: str) -> bool:
        """True if a grid that is shared with other tensors may not take the place of the fixed one."""
        is_held = any(_is_about(rule, "output_grid_holds", dtype) for rule in self.require)
        return dtype in self.fixed and (dtype in self.must_fix or is_held)

    def least_scale(self, index: int, dtype: str) -> float:
        """The least scale that an input of this type may have; 0 where any is right."""
        found = [rule for rule in (*self.require, *self.right) if _is_about(rule, "input_scale_at_least", dtype)]
        scales = (rule["scale"] for rule in found if rule["index"] == index)
        return max((scale for scale in scales if isinstance(scale, float)), default=0.0)


def _is_about(rule: Requirement, check: str, dtype: str) -> bool:
    types = rule.get("types")
    return rule["check"] == check and isinstance(types, list) and dtype in types


@dataclass(frozen=True, slots=True)
class Soc:
    """A chip: its name, the vendor's number for it, its NPU architecture, fast memory, and name in shops.

    `clock_mhz` is that of its NPU, where a compiler counts in cycles of it.
    """

    name: str
    id: int
    arch: int
    vtcm_mb: int = 0
    sold_as: str = ""
    clock_mhz: int | None = None


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of quantized operators that a target takes: what `rewrite` brings a model to.

    `rules` are families of rules, or single rules as `family.rule`, in the order in which they are tried at a node.
    A rule that creates an operator applies only where `kernels` lists it. `moves` says in which types an operator
    that only moves values has an integer kernel. `form` is how a quantized operator is written: between Q/DQ nodes
    (`qdq`), or as one integer operator (`qlinear`). `saturates` says that kernels for uint8 x int8 add pairs of
    products in 16 bits. The zero points of a weight with scales per channel may be `any`, or the `middle` of the
    type; weights of the operators in `makes_symmetric` come to that by rewriting, and
    those in `takes_distinct` have a kernel for zero points that differ by channel, while those in `refuses_distinct`
    do not run with them. Convolutions of up to
    `portable_up_to` multiplications, in 1, 2 and 3 dimensions, take the form of those without such a kernel all the
    same. `direct_conv` is what the fastest kernel for convolutions wants: a multiple of so many input channels, and so
    many output channels or more; and how many positions a convolution has whose input is worth a copy for that.
    `requantizes_wrongly` are the types in which a device may be wrong about a grid right behind another one.
    `worth_converting` is how many multiplications with each int8 from outside pay for its conversion to uint8, and
    `worth_flattening` how many results of a stack of matrices pay for a product that takes a matrix only.
    """

    form: Literal["qdq", "qlinear"] = "qdq"
    rules: tuple[str, ...] = ()
    kernels: frozenset[tuple[str, str]] = frozenset()
    moves: Mapping[str, frozenset[str]] = field(default_factory=dict)
    saturates: bool = False
    weight_zero_points: Literal["any", "middle"] = "any"
    makes_symmetric: frozenset[str] = frozenset()
    takes_distinct: frozenset[str] = frozenset()
    refuses_distinct: frozenset[str] = frozenset()
    portable_up_to: tuple[int, ...] = ()
    direct_conv: tuple[int, int, int] = (1, 1, 1)
    requantizes_wrongly: frozenset[str] = frozenset()
    worth_converting: int | None = None
    worth_flattening: int | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Packing:
    """The weights that a target multiplies with float activations: their types, and sizes of blocks with one scale."""

    types: tuple[str, ...]
    blocks: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Level:
    """A precision that nodes can have: types of activations and weights, the price of a multiply-add, bytes a value.

    `activation` is `float` where a node is not quantized. `bytes` are those of an activation, and of a weight.
    """

    name: str
    activation: str
    weight: str
    multiply: float
    bytes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of computing on a target, as multiples of one multiply-add of 8 bits.

    `levels` are the precisions to choose from, cheapest first; `byte` is the price of moving one byte, `cycle` that of
    a cycle of the compiler, where that tells cycles.
    """

    levels: tuple[Level, ...]
    byte: float
    source: str
    cycle: float | None = None

    def level_of(self, activation: str, weight: str | None) -> Level:
        """The cheapest level that has room for these types, or the last."""
        for level in self.levels:
            holds = width(level.activation) >= width(activation)
            if holds and (weight is None or width(level.weight) >= width(weight)):
                return level
        return self.levels[-1]


@dataclass(frozen=True, slots=True)
class Target:
    """A backend on one architecture: what it takes, and where that is known from.

    `later` are precisions that are not built yet, with the reason; `instead` says what to use in place of others.
    `usual_precision` is that of builds that ask for none. `halves` says that what is written in float32 is computed in
    half precision; `packing` is about weights of few bits beside float activations; `costs` is what mixed precision
    weighs accuracy against. `ort_fuses` says that ONNX Runtime's CPU provider fuses and runs what is deployed, so that
    what it would fuse wrongly is repaired first. `runs_float` says that a model of which nothing is quantized is of use
    there. `opset` is the newest that the toolchain reads, where that is older than what models are brought to.
    `by_chip` says that chips differ in more than their architecture, so that messages name the chip. `halves_alone`
    says that the toolchain makes half precision of float32 by itself, and knows fewer operators in a model that is
    written in it. `longest_stride` is that of the convolutions that it computes directly: longer ones cost a multiple
    of what they have to. `most_in_mean` is how many integers it takes the mean of in one step: of more it rounds twice.
    `channels_at_once` is how many it multiplies together: fewer cost as much. `cuts_flat_ends`
    says that a Clip in front of an operator that is flat beyond it makes the grid between them finer, and costs
    nothing. `wrong` is the folder with the file of what it computes wrongly.
    """

    backend: str
    arch: int | None
    soc: Soc | None
    npu: bool
    precisions: Mapping[str, str]
    later: Mapping[str, str]
    ops: Mapping[tuple[str, str], OpSpec]
    table: str
    rewrite: Forms = Forms()
    instead: Mapping[str, str] = field(default_factory=dict)
    halves: bool = False
    packing: Packing | None = None
    costs: Costs | None = None
    ort_fuses: bool = False
    runs_float: bool = False
    opset: int | None = None
    by_chip: bool = False
    halves_alone: bool = False
    longest_stride: int | None = None
    most_in_mean: int | None = None
    channels_at_once: int | None = None
    cuts_flat_ends: bool = False
    wrong: Path | None = None
    usual_precision: str = "uint8"

    def op(self, domain: str, op_type: str) -> OpSpec | None:
        """The facts about an operator, or None if the target does not know it."""
        return self.ops.get((domain, op_type))

    def has(self, domain: str, op_type: str) -> bool:
        """True if the target lists an operator."""
        return (domain, op_type) in self.ops

    @property
    def clipping(self) -> frozenset[tuple[str, str]]:
        """Operators that are part of the node before them where the grid behind them does their work."""
        return frozenset(key for key, spec in self.ops.items() if spec.absorbed)

    @property
    def name(self) -> str:
        """The target as it is written in messages: `qnn/v73`, `rknn/rk3588`, `cpu`."""
        if self.by_chip and self.soc is not None:
            return f"{self.backend}/{self.soc.name.lower()}"
        return self.backend if self.arch is None else f"{self.backend}/v{self.arch}"

    @property
    def multiplies_matrices_only(self) -> bool:
        """True if it computes a Gemm in integers, and a MatMul, whose operands may have more dimensions, in float."""
        return [self._has_integers("", op) for op in ("Gemm", "MatMul")] == [True, False]

    @property
    def most_dimensions(self) -> int | None:
        """The most dimensions that it takes; None where there is no such limit."""
        spec = self.op("", "Transpose")
        found = [rule["dimensions"] for rule in spec.require if rule["check"] == MOST_DIMENSIONS] if spec else []
        return next((most for most in found if isinstance(most, int)), None)

    @property
    def computes_softmax(self) -> bool:
        """True if attention stays on the device: some architectures leave its Softmax to the CPU, and moves with it."""
        spec = self.op("", "Softmax")
        return spec is not None and bool(self.signatures(spec))

    def _has_integers(self, domain: str, op_type: str) -> bool:
        spec = self.op(domain, op_type)
        return spec is not None and any(row.runs == "integer" for row in self.signatures(spec))

    def signatures(self, spec: OpSpec) -> tuple[Signature, ...]:
        """The signatures of an operator that this architecture has."""
        return tuple(s for s in spec.signatures if self.arch is None or s.arch <= self.arch)
