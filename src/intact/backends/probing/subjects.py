"""The cases and chains that an atlas is made of."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from intact.backends.probing.answers import Probed
from intact.backends.probing.cases import ABSENT, LITERALS, Case, CaseOperand, Chain, Template, cases
from intact.backends.probing.fitting import chained, fitted
from intact.records import dataclass

# The types of a chain: what activations have, and what weights, biases and other constants have beside them.
TYPES = {
    "uint8": {"w": "int8 constant channel symmetric", "b": "int32 constant", "c": "uint8 constant"},
    "uint16": {"w": "int8 constant channel symmetric", "b": "int32 constant", "c": "uint16 constant"},
    "int8": {"w": "int8 constant channel symmetric", "b": "int32 constant", "c": "int8 constant symmetric"},
    "int16": {"w": "int8 constant channel symmetric", "b": "int32 constant", "c": "int16 constant symmetric"},
}
# Types of operators that follow each other where both are in one network, with a conversion between them.
MIXED = (("uint8", "uint16"), ("uint16", "uint8"))
REGRID = "another grid"


@dataclass(frozen=True, slots=True)
class Asked:
    """A part of an atlas: operators, and types of activations; None stands for all."""

    ops: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None

    @property
    def told(self) -> tuple[str, ...] | None:
        """The operators, with the types where not all were asked about."""
        types = "" if self.types is None else f" ({', '.join(self.types)})"
        return None if self.ops is None and not types else tuple(f"{op}{types}" for op in self.ops or ("every",))


def _is_of(case: Case, types: Sequence[str] | None) -> bool:
    """True if everything of a case that is on the grid of an activation has one of the types."""
    pairs = zip(case.template.operands, case.slots, strict=True)
    read = [slot.split()[0] for operand, slot in pairs if operand.role in ("x", "y", "table")]
    numbers = {*read, case.output.split()[0]} - {"index", "index32", "bool"}
    return types is None or numbers <= set(types)


def taken(
    probed: Probed, arch: int, ops: Sequence[str] | None = None, types: Sequence[str] | None = None
) -> list[Case]:
    """One case for each operator, types and kind of grid that the library takes and gets right, with its range."""
    found: dict[tuple[object, ...], Case] = {}
    for case in (one for one in cases(ops) if _is_of(one, types)):
        answer = probed.answers.get(case.name, {}).get(arch)
        if answer is not None and answer.accepted:
            kinds = tuple(slot.split()[0] for slot in case.slots)
            found.setdefault((case.template.name, kinds, case.output.split()[0], case.grid), case)
    with_ranges = (case if case.grid != "own" else fitted(case) for case in found.values())
    return [case for case in with_ranges if case is not None]


def taken_wrongly(
    probed: Probed, arch: int, ops: Sequence[str] | None = None, types: Sequence[str] | None = None
) -> list[Case]:
    """The cases that the library takes as they are and gets wrong."""
    asked = [case for case in cases(ops) if _is_of(case, types)]
    answers = ((case, probed.answers.get(case.name, {}).get(arch)) for case in asked)
    return [case for case, answer in answers if answer and answer.verdict == "integer" and not answer.right]


def alone(ops: Sequence[str] | None = None, types: Sequence[str] | None = None) -> list[Case]:
    """The cases that only an atlas asks about, with their ranges."""
    steps = (_step(name, entry, dtype) for name, entry in _file()["alone"].items() for dtype in TYPES)
    wanted = (fitted(case) for case in steps if (ops is None or case.template.op in ops) and _is_of(case, types))
    return [case for case in wanted if case is not None]


def chains(ops: Sequence[str] | None = None, types: Sequence[str] | None = None) -> list[Chain]:
    """Every pair of operators that follow each other, and the triples that networks are full of.

    Pairs are asked about with a conversion between them, too, where one has 8 bits and the other 16.
    """
    rows = itertools.chain(
        _rows(ops, [dtype for dtype in TYPES if types is None or dtype in types]),
        _mixed_rows(ops, [pair for pair in MIXED if types is None or {*pair} <= {*types}]),
    )
    found: dict[str, Chain] = {}
    # A question is known by its name: of two that read alike, on images and on tokens, the first one is asked.
    for chain in (chain for chain in map(chained, rows) if chain is not None):
        found.setdefault(chain.name, chain)
    return list(found.values())


def _rows(ops: Sequence[str] | None, types: Sequence[str]) -> Iterator[list[Case]]:
    file = _file()
    for kind, dtype in itertools.product(("images", "tokens"), types):
        steps = {name: _step(name, dict(entry), dtype) for name, entry in file[kind].items()}
        # What is on no grid ends a chain.
        first = [name for name, step in steps.items() if step.output == dtype]
        names = [*itertools.product(first, steps), *map(tuple, file["triples"][kind])]
        for row in names:
            found = [steps[name] for name in row]
            if ops is None or any(case.template.op in ops for case in found):
                yield found


def _mixed_rows(ops: Sequence[str] | None, pairs: Sequence[tuple[str, str]]) -> Iterator[list[Case]]:
    file = _file()
    for kind, (first, second) in itertools.product(("images", "tokens"), pairs):
        entries = {name: entry for name, entry in file[kind].items() if entry["op"]}
        for one, other in itertools.product(entries, entries):
            start, end = _step(one, dict(entries[one]), first), _step(other, dict(entries[other]), second)
            if start.output == first and (ops is None or {start.template.op, end.template.op} & {*ops}):
                shape = end.template.operands[end.template.follows].shape
                between = Template(REGRID, "", "", (CaseOperand("x", shape),), (-1, 1))
                yield [start, Case(between, (first,), second), end]


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads((resources.files(__package__) / "chains.toml").read_text(encoding="utf-8"))


def _step(name: str, entry: dict[str, Any], dtype: str) -> Case:
    operands = tuple(map(CaseOperand.parse, entry["in"]))
    low, high = entry.get("own", (-1, 1))
    template = Template(name, entry["op"], "", operands, (low, high), entry.get("attributes", {}))
    template = replace(template, axis=entry.get("axis", 0), fixed=entry.get("fixed", False))
    slots = tuple(_slot(operand, dtype) for operand in operands)
    return Case(template, slots, entry.get("out", dtype), "same" if entry.get("moves") else "own")


def _slot(operand: CaseOperand, dtype: str) -> str:
    if operand.role in LITERALS or operand.role in (ABSENT, "index", "bool"):
        return operand.role
    if operand.role in ("x", "y"):
        return dtype
    # A shift, in a normalization, is a bias.
    return TYPES[dtype]["b" if operand.role in ("bias", "shift") else operand.role]
