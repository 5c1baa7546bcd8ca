"""The cases whose shapes an atlas varies: shapes matter alike for most types."""

from __future__ import annotations

from collections.abc import Sequence

from intact.backends.probing.cases import Case, Chain


def shaped(taken: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Cases whose shapes are asked about: one for each operator and width of numbers, and one for each other type.

    Shapes matter alike for all weights; among the first are those of one type without signs, where there is one.
    """
    shown: dict[tuple[str, bool], Case] = {}
    for case in sorted(taken, key=_oddness):
        shown.setdefault(kind_of(case), case)
    first = {case.name for case in shown.values()}
    known = {(case.template.name, case.output) for case in shown.values()}
    others: dict[tuple[str, str], Case] = {}
    for case in (one for one in taken if (one.template.name, one.output) not in known):
        others.setdefault((case.template.name, case.output), case)
    return [case for case in taken if case.name in first], list(others.values())


def kind_of(case: Case | Chain) -> tuple[str, bool]:
    """The operator, and if any number has 16 bits."""
    assert isinstance(case, Case), "a chain has no sizes"
    return case.template.name, any(word.split()[0] in ("uint16", "int16") for word in (*case.slots, case.output))


def _oddness(case: Case) -> tuple[int, bool]:
    pairs = zip(case.template.operands, case.slots, strict=True)
    types = {slot.split()[0] for operand, slot in pairs if operand.role in ("x", "y", "table")} | {case.output}
    return len(types), any(word.startswith("int") for word in types)
