"""The questions that a probe asks: operators with a type in each place, expanded from `cases.toml`."""

from __future__ import annotations

import itertools
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from importlib import resources
from typing import Any

from intact.records import dataclass

ABSENT = "-"
LITERALS = ("ints", "floats", "numbers")
HALF, PLAIN = "float16", "plain"

_SMALLEST_WITH_BLOCKS = 16
_NUMBERS = {"float", HALF, *(f"{sign}int{bits}" for sign in ("u", "") for bits in (2, 4, 8, 16))}

# Types to ask for in the output where it differs from the input.
_OTHER_OUTPUTS = {"uint8": ("uint16", "float"), "uint16": ("uint8", "float")}


@dataclass(frozen=True, slots=True)
class CaseOperand:
    """A place of an operator: what may stand there, its shape, and the range of its grid.

    `fill` is the part of that range that the values of an input cover; more than 1 leaves the grid.
    """

    role: str
    shape: tuple[int, ...]
    low: float = -0.75
    high: float = 1.0
    values: tuple[float, ...] = ()
    fill: float = 1.0

    @classmethod
    def parse(cls, text: str) -> CaseOperand:
        """An operand from its words in `cases.toml`."""
        role, _, rest = text.partition(" ")
        if role in LITERALS:
            return _literal(role, rest)
        shape, _, bounds = rest.partition(" ")
        sizes = tuple(int(size) for size in shape.split("x")) if shape else ()
        low, _, high = bounds.partition("..")
        return cls(role, sizes, float(low), float(high)) if bounds else cls(role, sizes)


@dataclass(frozen=True, slots=True)
class Template:
    """An operator to ask about; see `cases.toml` for what the fields mean."""

    name: str
    op: str
    domain: str
    operands: tuple[CaseOperand, ...]
    own: tuple[float, float]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    cross: tuple[int, ...] = (0,)
    tied: tuple[int, ...] = ()
    outputs: int = 1
    indices: bool = False
    out_of: int = 0
    axis: int = 0
    moves: bool = False
    apart: bool = False
    fixed: bool = False
    held: bool = False
    outs: bool = False
    half: bool = True
    out: tuple[str, ...] = ()

    @property
    def keeps_range(self) -> bool:
        """True if the range of the result is that of the operator, whatever the values are."""
        return self.fixed or self.held

    @property
    def follows(self) -> int:
        """The operand that reads the result of an operator before this one: the first activation."""
        return next((index for index, operand in enumerate(self.operands) if operand.role == "x"), 0)


@dataclass(frozen=True, slots=True)
class Case:
    """One question: a template with a slot for every operand and the outputs.

    `grid` says how the output's grid relates to that of the input: `own`, `same`, `shifted` (a zero point where a
    fixed output has none), `narrow` (it ends before the values that a fixed output can have), or `apart` (inputs with
    different grids). `drawn_as` is the name of the question whose random numbers it has, where they are not its own.
    """

    template: Template
    slots: tuple[str, ...]
    output: str
    grid: str = "own"
    drawn_as: str = ""

    @property
    def name(self) -> str:
        """The question in one line, which identifies it."""
        grid = "" if self.grid == "own" else f", {self.grid} grid"
        return f"{self.template.name} ({', '.join(self.slots)}) -> {self.output}{grid}"

    @property
    def numbers(self) -> set[str]:
        """The types of all numbers in it; a bias of 32 bits goes with the grids of others."""
        return {slot.split()[0] for slot in (*self.slots, self.output)} & _NUMBERS

    @property
    def seed(self) -> int:
        """The seed of its random numbers."""
        return zlib.crc32((self.drawn_as or self.name).encode())


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that follow each other: the first activation that each reads is the result of the one before."""

    steps: tuple[Case, ...]

    @property
    def name(self) -> str:
        """The question in one line, which identifies it."""
        return ", then ".join(step.name for step in self.steps)


def block_axis(template: Template) -> int:
    """The axis of a weight along which blocks lie: the one that is summed over."""
    return template.axis - 1 if template.axis else 1


def cases(ops: Sequence[str] | None = None, types: Sequence[str] | None = None) -> list[Case]:
    """Every question, or those about operators in `ops` and numbers of `types` alone."""
    found = [case for template in templates() if ops is None or template.op in ops for case in _expand(template)]
    return found if types is None else [case for case in found if case.numbers <= set(types)]


@cache
def templates() -> tuple[Template, ...]:
    """The operators of `cases.toml`."""
    return tuple(_template(name, dict(entry)) for name, entry in _file()["op"].items())


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / "cases.toml").read_text(encoding="utf-8"))


def _literal(role: str, text: str) -> CaseOperand:
    """Values, one-dimensional unless `scalar` or a shape (`4x1: 0,1,2,3`) says otherwise."""
    shape, _, numbers = text.rpartition(": ") if ":" in text else ("", "", text.removeprefix("scalar "))
    values = tuple(float(number) for number in numbers.split(","))
    scalar = text.startswith("scalar ")
    sizes = tuple(int(size) for size in shape.split("x")) if shape else () if scalar else (len(values),)
    return CaseOperand(role, sizes, values=values)


def _template(name: str, entry: dict[str, Any]) -> Template:
    domain, _, op = name.partition(": ")[0].rpartition("::")
    operands = tuple(map(CaseOperand.parse, entry.pop("in")))
    low, high = entry.pop("own")
    lists = (("cross", (0,)), ("tied", ()), ("out", ()))
    cross, tied, out = (tuple(entry.pop(key, default)) for key, default in lists)
    return Template(name, op, domain, operands, (low, high), cross=cross, tied=tied, out=out, **entry)


def _expand(template: Template) -> Iterator[Case]:
    """Crossed operands in every combination; then, for each activation, one change at a time."""
    seen = set()
    for slots in filter(lambda slots: _is_possible(template, slots), _combinations(template)):
        for case in _variants(template, slots):
            if case.name not in seen:
                seen.add(case.name)
                yield case


def _combinations(template: Template) -> Iterator[tuple[str, ...]]:
    choices = [_choices(operand) for operand in template.operands]
    free = [index for index in range(len(choices)) if index not in template.cross]
    for crossed in itertools.product(*(choices[index] for index in template.cross)):
        slots = [options[0] for options in choices]
        for index, slot in zip(template.cross, crossed, strict=True):
            slots[index] = slot
        for index in template.tied:
            slots[index] = slots[template.tied[0]]
        slots = _follow(template, slots)
        yield tuple(slots)
        changes = [(i, slot) for i in free if template.operands[i].role == "b" for slot in choices[i][1:]]
        for index, slot in changes if slots[1:2] in (["int8 constant channel symmetric"], ["float constant"]) else ():
            yield (*slots[:index], slot, *slots[index + 1 :])


def _is_possible(template: Template, slots: tuple[str, ...]) -> bool:
    """True if ONNX has the operator in half precision, and weights in blocks are large enough for them."""
    if HALF in slots and not template.half:
        return False
    shapes = [o.shape for o, slot in zip(template.operands, slots, strict=True) if "block" in slot.split()]
    return all(shape[block_axis(template)] >= _SMALLEST_WITH_BLOCKS for shape in shapes)


def _choices(operand: CaseOperand) -> Sequence[str]:
    if operand.role == "x":
        activations: list[str] = _file()["activations"]
        return activations
    if operand.role in _file()["slots"]:
        slots: list[str] = _file()["slots"][operand.role]
        return slots
    return (operand.role,)


def _follow(template: Template, slots: list[str]) -> list[str]:
    """Activations that are not crossed are like the first one; floats beside floats are as wide as they are."""
    first = slots[template.out_of]
    if HALF in slots:
        return [_half(operand, slot) for operand, slot in zip(template.operands, slots, strict=True)]
    like = [role in ("x", "y") and i not in template.cross for i, role in enumerate(o.role for o in template.operands)]
    slots = [first if alike else slot for alike, slot in zip(like, slots, strict=True)]
    if first == "float":
        slots = [slot if o.role != "b" else "float constant" for o, slot in zip(template.operands, slots, strict=True)]
    return slots


def _half(operand: CaseOperand, slot: str) -> str:
    if operand.role in ("x", "y"):
        return HALF
    return f"{HALF} constant" if operand.role in _file()["slots"] and slot != ABSENT else slot


def _variants(template: Template, slots: tuple[str, ...]) -> Iterator[Case]:
    if template.out:
        yield from (Case(template, slots, output) for output in template.out)
        return
    words = [word for word in slots[template.out_of].split() if word != "constant"]
    output = " ".join(words)
    plain = Case(template, slots, output)
    yield plain
    if output in ("float", HALF):
        return
    if template.moves:
        yield replace(plain, grid="same")
    if template.apart:
        yield replace(plain, grid="apart")
    if template.fixed:
        yield from (replace(plain, grid=grid) for grid in ("shifted", "narrow"))
    if template.outs and _is_plain(template, slots):
        yield from (replace(plain, output=other) for other in _OTHER_OUTPUTS.get(output, ()))


def _is_plain(template: Template, slots: tuple[str, ...]) -> bool:
    """True if all activations have one type, so that only the output is out of line."""
    activations = {slot for o, slot in zip(template.operands, slots, strict=True) if o.role in ("x", "y")}
    return len(activations) == 1
