"""A target table as it is written: which keys it may have, and what may stand behind them.

`registry` makes a `Target` of it. A wrong or missing key, or a wrong value, is an error that names the table, the line,
and the nearest right key.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from intact.errors import SettingsError
from intact.settings import hand_written
from intact.settings.config import Precision, nearest
from intact.targets.spec import QUANTIZED, Slot

REPEATS = "..."
# Errors of one table that are told at a time.
MOST_TOLD = 5
# Names of the kinds that a value may have, which stand in the path of an error about it.
_ALTERNATIVES = ("int", "AxisRow")

slot_of = cache(Slot.parse)
"""Slots are written the same many times in a table."""


def _slot(text: str) -> str:
    if text != REPEATS:
        try:
            slot_of(text)
        except SettingsError as error:
            raise PydanticCustomError("slot", "{said}", {"said": error.message}) from None
    return text


def _types(text: str) -> str:
    wrong = [word for word in text.split("|") if word not in QUANTIZED]
    if wrong:
        raise _unknown("type", wrong[0], QUANTIZED)
    return text


def _precision(word: str) -> str:
    if word not in get_args(Precision):
        raise _unknown("precision", word, get_args(Precision))
    return word


def _requirement(rule: dict[str, object]) -> dict[str, object]:
    """A requirement that names a predicate, and gives it the arguments that it takes."""
    from intact.targets.predicates import NOT_ARGUMENTS, PREDICATES

    name = str(rule.get("check", ""))
    if name not in PREDICATES:
        raise _unknown("check", name, sorted(PREDICATES))
    takes = {key: p for key, p in inspect.signature(PREDICATES[name]).parameters.items() if key != "node"}
    for key in rule:
        if key not in (*takes, *NOT_ARGUMENTS):
            raise _unknown("key", key, [*takes, *NOT_ARGUMENTS])
    missing = [key for key, parameter in takes.items() if parameter.default is parameter.empty and key not in rule]
    if missing:
        raise PydanticCustomError("argument", "{said}", {"said": f"{name} needs the key {missing[0]}"})
    return rule


def _unknown(what: str, word: str, known: Sequence[str]) -> PydanticCustomError:
    said = f"unknown {what} {word}{nearest(word, list(known))} (allowed: {', '.join(known)})"
    return PydanticCustomError("unknown", "{said}", {"said": said, "key": word})


PrecisionName = Annotated[str, AfterValidator(_precision)]
SlotText = Annotated[str, AfterValidator(_slot)]
TypesText = Annotated[str, AfterValidator(_types)]
Requirement = Annotated[dict[str, object], AfterValidator(_requirement)]


class TableSection(BaseModel):
    """A part of a table: it has no other keys than these."""

    # Validators are built when they are first used: those of sections are part of the whole table's.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, values: object) -> object:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in values if isinstance(values, dict) else ():
            if key not in known:
                raise _unknown("key", key, known)
        return values


class TargetSection(TableSection):
    """`[target]`: its name, and what is true of it as a whole.

    `untimed` and `estimates` are those of its backend (`backends.base.Backend`), here too so that a gate that cannot be
    checked is refused before a backend is loaded. `usual_precision` is that of builds that ask for none.
    """

    name: str
    npu: bool
    runs_float: bool = False
    default_arch: int | None = None
    archs: list[int] = []
    halves_from: int | None = None
    ort_fuses: bool = False
    opset: int | None = None
    by_chip: bool = False
    halves_alone: bool = False
    longest_stride: int | None = None
    most_in_mean: int | None = None
    channels_at_once: int | None = None
    cuts_flat_ends: bool = False
    untimed: str | None = None
    estimates: bool = False
    usual_precision: str = "uint8"


class SignatureRow(TableSection):
    """A row of `take` or `more`: what may stand at the inputs and outputs of an operator."""

    inputs: list[SlotText] = Field(alias="in", min_length=1)
    outputs: list[SlotText] = Field(alias="out", min_length=1)
    arch: int | None = None
    source: str | None = None
    require: list[Requirement] = []
    runs: Literal["integer", "float"] = "integer"

    @property
    def repeats(self) -> bool:
        """True if the last input may repeat."""
        return self.inputs[-1] == REPEATS


class AxisRow(TableSection):
    """`weight_axis` where it depends on an attribute."""

    default: int
    attribute: str
    values: dict[str, int]


class FixedRow(TableSection):
    """A type in `fixed`: the grid that an output has, and what of it is a must."""

    scale: float
    zero_point: int
    must: Literal["zero_point", "both"] | None = None


class OpEntry(TableSection):
    """`[op.X]`, or `[group.x]`, whose keys operators that are `like` it have unless they say otherwise."""

    like: str | None = None
    take: list[SignatureRow] = []
    more: list[SignatureRow] = []
    source: str = ""
    float_arch: int = 0
    grid: Literal["own", "input", "common"] = "own"
    start: bool = True
    weight_axis: int | AxisRow = 0
    channel_rank: int | None = None
    fixed: dict[str, FixedRow] = {}
    require: list[Requirement] = []
    right: list[Requirement] = []
    must_share: bool = True
    absorbed: bool = False
    group: Literal["all", "first", "never"] = "all"
    joined_alone: bool = False

    def over(self, group: OpEntry) -> OpEntry:
        """This entry, with what its group says where it says nothing."""
        return group.model_copy(update={key: getattr(self, key) for key in self.model_fields_set})


class EverySection(TableSection):
    """`[every]`: what is required of every operator."""

    require: list[Requirement] = []


class DirectConvRow(TableSection):
    """`direct_conv`: what the fastest kernel for convolutions wants."""

    inputs: int = 1
    outputs: int = 1
    positions: int = 1


class RewriteSection(TableSection):
    """`[rewrite]`: see `spec.Forms`."""

    form: Literal["qdq", "qlinear"] = "qdq"
    rules: list[str] = []
    kernels: list[str] = []
    moves: dict[str, TypesText] = {}
    saturates_without: Literal["vnni"] | None = None
    weight_zero_points: Literal["any", "middle"] = "any"
    makes_symmetric: list[str] = []
    distinct_zero_points: dict[str, str] = {}
    portable_up_to: list[int] = []
    direct_conv: DirectConvRow = DirectConvRow()
    requantizes_wrongly: list[str] = []
    worth_converting: int | None = None
    worth_flattening: int | None = None
    source: str = ""


class WeightOnlySection(TableSection):
    """`[weight_only]`: see `spec.Packing`."""

    types: list[TypesText]
    blocks: list[int]
    source: str


class LevelRow(TableSection):
    """A row of `levels`: see `spec.Level`."""

    name: str
    activation: str
    weight: str
    multiply: float
    bytes: list[float] = Field(min_length=2, max_length=2)


class CostSection(TableSection):
    """`[cost]`: see `spec.Costs`."""

    levels: list[LevelRow]
    byte: float
    cycle: float | None = None
    source: str


class SocRow(TableSection):
    """A row of `[soc]`: see `spec.Soc`."""

    name: str
    id: int
    arch: int
    vtcm_mb: int = 0
    sold_as: str = ""
    clock_mhz: int | None = None


class SocSection(TableSection):
    """`[soc]`: the chips of a backend."""

    rows: list[SocRow]
    source: str = ""


class Disagreement(TableSection):
    """`[[disagreement]]`: a documented fact that a probe contradicts, and the case that shows it."""

    what: str
    documented: str
    probed: str
    case: str
    arch: int
    verdict: str


class TableHead(TableSection):
    """The sections about a device as a whole."""

    target: TargetSection
    precisions: dict[PrecisionName, str] = {}
    later: dict[PrecisionName, str] = {}
    instead: dict[PrecisionName, str] = {}
    soc: SocSection | None = None


class TargetTable(TableHead):
    """A whole table."""

    op: dict[str, OpEntry] = {}
    group: dict[str, OpEntry] = {}
    every: EverySection = EverySection()
    rewrite: RewriteSection = RewriteSection()
    weight_only: WeightOnlySection | None = None
    cost: CostSection | None = None
    disagreement: list[Disagreement] = []

    @model_validator(mode="after")
    def _groups_are_there(self) -> TargetTable:
        for entry in self.op.values():
            if entry.like is not None and entry.like not in self.group:
                raise _unknown("group", entry.like, list(self.group))
        return self

    def entry(self, op: str) -> OpEntry:
        """All that the table says about an operator, with what its group says."""
        own = self.op[op]
        return own if own.like is None else own.over(self.group[own.like])


def parse(text: str, name: str) -> TargetTable:
    """The table in `text`; `name` is what errors call it."""
    with _told_by_line(text, name):
        return TargetTable.model_validate(hand_written.parse_toml(text))


def parse_head(text: str, name: str) -> TableHead:
    """The head of a table; what the rest of it says is not looked at."""
    with _told_by_line(text, name):
        values = hand_written.parse_toml(text)
        return TableHead.model_validate({key: values[key] for key in TableHead.model_fields if key in values})


@contextmanager
def _told_by_line(text: str, name: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise _told(error, text, name) from None
    except ValueError as error:
        raise SettingsError("S123", f"{name}: {error}") from None


def _told(error: ValidationError, text: str, name: str) -> SettingsError:
    found = [f"{name}:{line}: {where}{said}" for line, where, said in (_row(row, text) for row in error.errors())]
    more = [f"and {len(found) - MOST_TOLD} more"] if len(found) > MOST_TOLD else []
    return SettingsError("S193", "\n  ".join([*found[:MOST_TOLD], *more]), fix="correct the table")


def _row(row: ErrorDetails, text: str) -> tuple[int, str, str]:
    """The line that an error is about, the section, and what is wrong."""
    words = [str(part) for part in row["loc"] if part not in _ALTERNATIVES]
    said, context = row["msg"], row.get("ctx", {})
    if words[-1:] == ["[key]"]:
        words = words[:-2]
    if row["type"] == "missing":
        said, words = f"the key {words[-1]} is missing", words[:-1]
    elif "key" in context:
        words = [*words, str(context["key"])]
    else:
        key = next((word for word in reversed(words) if not word.isdecimal()), "")
        said = f"{key} = {row['input']!r}: {said[:1].lower()}{said[1:]}"
    line, section = _place(text.splitlines(), words)
    return line, f"{section} " if section else "", said


def _place(lines: Sequence[str], words: Sequence[str]) -> tuple[int, str]:
    """The line that a path of keys and positions leads to, counted from 1, and the header that it stands under."""
    headers = [(number, _header(line)) for number, line in enumerate(lines) if _header(line)]
    fitting = [(number, header) for number, header in headers if header == tuple(words[: len(header)])]
    longest = max((len(header) for _, header in fitting), default=0)
    same = [number for number, header in fitting if len(header) == longest] or [0]
    rest = list(words[longest:])
    # A header in double brackets stands once for each of its rows.
    at = same[int(rest.pop(0))] if rest and rest[0].isdecimal() and int(rest[0]) < len(same) else same[0]
    section = lines[at].strip() if longest else ""
    end = next((number for number, _ in headers if number > at), len(lines)) if longest else len(lines)
    for word in rest:
        at = _next(lines, word, at, end)
    return at + 1, section


def _next(lines: Sequence[str], word: str, at: int, end: int) -> int:
    """The first line from `at` on with the key `word`, or with the row of that number; `at` where there is none."""
    if word.isdecimal() and lines[at].lstrip().startswith("{"):
        return at  # a list within a row, which is written on one line
    if word.isdecimal():
        rows = [number for number in range(at + 1, end) if lines[number].lstrip().startswith("{")]
        return rows[int(word)] if int(word) < len(rows) else at
    key = re.compile(rf'(?:^|[\s{{,.\[])"?{re.escape(word)}"?\s*[=.\]]|= "{re.escape(word)}"')
    return next((number for number in range(at, end) if key.search(lines[number])), at)


def _header(line: str) -> tuple[str, ...]:
    """The parts of the header of a section, or nothing for another line."""
    found = re.fullmatch(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?", line)
    return tuple(part.strip().strip('"') for part in re.findall(r'"[^"]*"|[^.]+', found[1])) if found else ()
