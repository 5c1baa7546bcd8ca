"""Factors of a question that can be varied, one at a time: scales, zero points, values, sizes, ranks, attributes.

A factor makes a case of another one and a number. The grid of a result follows from what ONNX Runtime computes before
it is rounded, unless that grid is the factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from intact.backends.probing.cases import ABSENT, LITERALS, Case, CaseOperand, Chain
from intact.backends.probing.fitting import ON_GRIDS, Factor, chained, fitted, numbered, with_operand
from intact.backends.probing.shape_factors import SIZES, shape_factors
from intact.numbers.integer_types import limits
from intact.records import dataclass

SCALES = tuple(10.0**power for power in range(-7, 4))
# Of a move that leaves its only input on its grid: integers go through it as they are, whatever a step is worth.
ENDS_OF_SCALES = (SCALES[0], SCALES[-1])
FILLS = (1 / 64, 1 / 16, 1 / 4, 1.0, 2.0)
# Widths of a grid as multiples of what its values need: a tensor that was all zeros may have any scale.
ROOMS = (1.0, *(4.0**power for power in (2, 4, 5, 6, 7, 8)))
# What stands on the grid of an activation; the grid of a weight is made of its values.
ROOMY = ("x", "y", "c", "table")
# Factors of the range of an input behind another operator.
RATIOS = tuple(4.0**power for power in (-6, -4, -2, -1, 0, 1, 2, 4, 6))
ENDS = (("from 0 up", (0.0, 1.0)), ("up to 0", (-1.0, 0.0)), ("alike on both sides", (-1.0, 1.0)))
# Grids of a result, as parts of the range that it has.
RESULTS = (("cut off at 0, as by a Relu", (0.0, 1.0)),)
# Widths of a result's grid as multiples of its range, of which the narrower ones cut off; between operators none does.
WIDTHS, WIDER = (0.5, 1.0, 4.0, 16.0), (1.0, 4.0)
# As it stands: values fill a grid, which has the room that they need.
WHOLE = 1.0


def factors_of(case: Case, sizes: Sequence[int] = SIZES) -> Iterator[Factor]:
    """All factors of a case, or without `sizes` only those of its grids and values."""
    for index, (operand, slot) in enumerate(zip(case.template.operands, case.slots, strict=True)):
        if slot == ABSENT or operand.role in LITERALS or not operand.shape:
            continue
        if slot.split()[0] in ON_GRIDS:
            yield from _of_grids(case, index, operand)
    if case.grid == "own" and not case.template.keeps_range and case.output.split()[0] in ON_GRIDS:
        yield numbered("grid of the result", [word for word, _ in RESULTS], _Regridded(case))
        wider = _Widened(case)
        yield Factor("grid of the result, times as wide", WIDTHS, wider, ordered=True, usual=WHOLE)
    if sizes:
        yield from shape_factors(case, sizes)


def _of_grids(case: Case, index: int, operand: CaseOperand) -> Iterator[Factor]:
    levels = np.subtract(*limits(case.slots[index].split()[0])[::-1])
    width = operand.high - operand.low

    def scaled(value: float) -> Case | None:
        factor = value * float(levels) / width
        return fitted(with_operand(case, index, replace(operand, low=operand.low * factor, high=operand.high * factor)))

    def ended(value: float) -> Case | None:
        low, high = ENDS[int(value)][1]
        return fitted(with_operand(case, index, replace(operand, low=low * width, high=high * width)))

    def filled(value: float) -> Case | None:
        return fitted(with_operand(case, index, replace(operand, fill=value)))

    def roomy(value: float) -> Case | None:
        return fitted(with_operand(case, index, _roomier(operand, value)))

    moved = _only_moves(case)
    yield Factor(f"scale of input {index}", ENDS_OF_SCALES if moved else SCALES, scaled, ordered=True)
    if operand.role in ROOMY and not moved:
        name = f"grid of input {index} as a multiple of what its values need"
        yield Factor(name, ROOMS, roomy, ordered=True, usual=WHOLE)
    if operand.low < 0 and "symmetric" not in case.slots[index]:
        yield numbered(f"range of input {index}", [word for word, _ in ENDS], ended)
    if "constant" not in case.slots[index] and not moved:
        name = f"part of the grid of input {index} that values cover"
        yield Factor(name, FILLS, filled, ordered=True, usual=WHOLE)


def _only_moves(case: Case) -> bool:
    """True if the result is on the grid of the only input that is on one, and no number meets its values."""
    operands = zip(case.template.operands, case.slots, strict=True)
    on_grids = [operand for operand, slot in operands if slot.split()[0] in ON_GRIDS]
    numbers = any(operand.role == "numbers" for operand in case.template.operands)
    return case.grid == "same" and len(on_grids) == 1 and not numbers


def _roomier(operand: CaseOperand, value: float) -> CaseOperand:
    """An operand with the same values on a grid so many times as wide."""
    return replace(operand, low=operand.low * value, high=operand.high * value, fill=operand.fill / value)


def factors_between(chain: Chain) -> Iterator[Factor]:
    """Grids between operators, and those and the range of each input that meets the result of an operator before."""
    for number, step in enumerate(chain.steps[:-1]):
        if step.grid == "own" and not step.template.keeps_range and step.template.own[0] < 0:
            name = f"grid between {step.template.name} and {chain.steps[number + 1].template.name}"
            yield numbered(name, [word for word, _ in RESULTS], _RegriddedBetween(chain, number))
            wider = _WidenedBetween(chain, number)
            yield Factor(f"{name}, times as wide", WIDER, wider, ordered=True, usual=WHOLE)
    for number, step in enumerate(chain.steps[1:], 1):
        for index, (operand, slot) in enumerate(zip(step.template.operands, step.slots, strict=True)):
            if operand.role == "y" and slot.split()[0] in ON_GRIDS:
                name = f"range of input {index} of {step.template.name}, times"
                yield Factor(name, RATIOS, _Ranged(chain, number, index), ordered=True, usual=WHOLE)
            if operand.role in ROOMY and index != step.template.follows and slot.split()[0] in ON_GRIDS:
                name = f"grid of input {index} of {step.template.name} as a multiple of what its values need"
                yield Factor(name, ROOMS, _Ranged(chain, number, index, alone=True), ordered=True, usual=WHOLE)


@dataclass(frozen=True, slots=True)
class _RegriddedBetween:
    """A chain with another grid behind one of its operators, by its number."""

    chain: Chain
    number: int

    def __call__(self, value: float) -> Chain | None:
        return chained(self.chain.steps, {self.number: RESULTS[int(value)][1]})


@dataclass(frozen=True, slots=True)
class _WidenedBetween:
    """A chain with a grid so many times as wide behind one of its operators, by its number."""

    chain: Chain
    number: int

    def __call__(self, value: float) -> Chain | None:
        return chained(self.chain.steps, {self.number: (value, value)})


@dataclass(frozen=True, slots=True)
class _Ranged:
    """A chain with another range of one input of one of its operators, or `alone` the grid of another range."""

    chain: Chain
    number: int
    index: int
    alone: bool = False

    def __call__(self, value: float) -> Chain | None:
        steps = list(self.chain.steps)
        operand = steps[self.number].template.operands[self.index]
        other = _roomier(operand, value)
        steps[self.number] = with_operand(
            steps[self.number], self.index, other if self.alone else replace(other, fill=operand.fill)
        )
        return chained(steps)


@dataclass(frozen=True, slots=True)
class _Regridded:
    """A case with another grid for its result, by its number."""

    case: Case

    def __call__(self, value: float) -> Case | None:
        return _covering(self.case, RESULTS[int(value)][1])


@dataclass(frozen=True, slots=True)
class _Widened:
    """A case with a grid for its result that is so many times as wide as what it covers."""

    case: Case

    def __call__(self, value: float) -> Case | None:
        return _covering(self.case, (value, value))


def _covering(case: Case, parts: tuple[float, float]) -> Case | None:
    """A case whose result is on a grid of some part of its range."""
    found = fitted(case)
    if found is None:
        return None
    low, high = (part * end for part, end in zip(parts, found.template.own, strict=True))
    return replace(found, template=replace(found.template, own=(low, high))) if high > low else None
