"""What a target says about operators: signatures of types, grids, gates. Plain values, read from a table.

A *signature* lists, for each input and output of an operator, what may stand there. A slot is written as words:

    "uint8"                     this type, one scale for the tensor
    "uint8|uint16"              one of these types
    "int8 constant channel"     a constant weight with one scale per channel (`weight_axis`)
    "int4 constant block"       a constant weight with one scale per block
    "uint16 symmetric"          the zero point is the middle of the type (0 for signed types)
    "float", "index", "bool"    not quantized: float, integer or boolean values
    "any"                       whatever stands there

`...` as the last input means that the one before it may repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from intact.errors import SettingsError

QUANTIZED = ("uint8", "int8", "uint16", "int16", "uint4", "int4", "uint2", "int2", "int32")
UNQUANTIZED = ("float", "float16", "index", "bool", "any")
GRANULARITIES = ("tensor", "channel", "block")


@dataclass(frozen=True, slots=True)
class Slot:
    """What one input or output of an operator may be."""

    types: tuple[str, ...]
    constant: bool = False
    symmetric: bool = False
    granularity: str = "tensor"

    @classmethod
    def parse(cls, text: str) -> Slot:
        """A slot from its words; unknown words are refused."""
        types, *words = text.split()
        unknown = [t for t in types.split("|") if t not in QUANTIZED + UNQUANTIZED]
        unknown += [w for w in words if w not in ("constant", "symmetric", *GRANULARITIES)]
        if unknown:
            raise SettingsError("S120", f"slot {text!r}: unknown word {unknown[0]!r}", allowed=", ".join(QUANTIZED))
        granularity = next((w for w in words if w in GRANULARITIES), "tensor")
        return cls(tuple(types.split("|")), "constant" in words, "symmetric" in words, granularity)

    def __str__(self) -> str:
        words = ["|".join(self.types)]
        words += ["constant"] if self.constant else []
        words += ["symmetric"] if self.symmetric else []
        words += [self.granularity] if self.granularity != "tensor" else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Signature:
    """One accepted combination of inputs and outputs, from the architecture `arch` on."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    repeats: bool
    arch: int
    source: str

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
    channel need a weight of rank `channel_rank`, where that is set.
    """

    op: str
    domain: str
    signatures: tuple[Signature, ...]
    grid: Literal["own", "input", "common"]
    start: bool
    weight_axis: Axis
    channel_rank: int | None
    fixed: Mapping[str, tuple[float, int]]
    require: tuple[Mapping[str, Any], ...]
    source: str


@dataclass(frozen=True, slots=True)
class Soc:
    """A chip: its name, the vendor's number for it, its NPU architecture and fast memory."""

    name: str
    id: int
    arch: int
    vtcm_mb: int


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms of quantized operators that a target takes: what `rewrite` brings a model to.

    `families` are the families of rules that apply, in the order in which they are tried at a node. A rule that
    creates an operator of its own applies only where `kernels` lists that operator. `form` is the form of a
    quantized operator as a whole: between Q/DQ nodes (`qdq`), or one integer operator (`qlinear`).
    """

    form: Literal["qdq", "qlinear"] = "qdq"
    families: tuple[str, ...] = ()
    kernels: frozenset[tuple[str, str]] = frozenset()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A backend on one architecture: what it takes, and where that is known from."""

    backend: str
    arch: int | None
    soc: Soc | None
    npu: bool
    precisions: Mapping[str, str]
    later: Mapping[str, str]
    ops: Mapping[tuple[str, str], OpSpec]
    table: str
    rewrite: Forms = Forms()  # noqa: RUF009

    def op(self, domain: str, op_type: str) -> OpSpec | None:
        """What the target says about an operator, or None if it does not know it."""
        return self.ops.get((domain, op_type))

    @property
    def name(self) -> str:
        """The target as it is written in messages: `qnn/v73`, `cpu`."""
        return self.backend if self.arch is None else f"{self.backend}/v{self.arch}"

    def signatures(self, spec: OpSpec) -> tuple[Signature, ...]:
        """The signatures of an operator that this architecture has."""
        return tuple(s for s in spec.signatures if self.arch is None or s.arch <= self.arch)
