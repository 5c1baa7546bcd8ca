"""What can be varied in a question, one factor at a time: scales, zero points, values, sizes, ranks, attributes.

A factor makes a case of another one and a number. Sizes that have to change together are found by trying: the first
change that ONNX Runtime computes is taken. The grid of a result follows from what ONNX Runtime computes in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intact.backends.probing.cases import ABSENT, LITERALS, Case, CaseOperand, Chain, Template
from intact.backends.probing.models import inputs_of, model_of
from intact.numbers.integer_types import limits
from intact.runtime import ort_cpu

SCALES = tuple(10.0**power for power in range(-7, 4))
FILLS = (1 / 64, 1 / 16, 1 / 4, 1.0, 2.0)
SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 65)
# A range of this kind: from 0 up, up to 0, and alike on both sides.
ENDS = {0.0: (0.0, 1.0), 1.0: (-1.0, 0.0), 2.0: (-1.0, 1.0)}
# Sums that leave what a float of 32 bits holds prove nothing.
MOST = 1e30


@dataclass(frozen=True, slots=True)
class Factor:
    """Something of a case that can be varied: its name, the values to try, and the case at a value, if there is one.

    Values of an ordered factor have an edge between a right one and a wrong one that can be narrowed.
    """

    name: str
    values: Sequence[float]
    at: Callable[[float], Case | None]
    ordered: bool = False


def factors_of(case: Case, *, shapes: bool = True) -> Iterator[Factor]:
    """All factors of a case, or without `shapes` only those of its grids and values."""
    for index, (operand, slot) in enumerate(zip(case.template.operands, case.slots, strict=True)):
        if slot == ABSENT or operand.role in LITERALS or not operand.shape:
            continue
        if slot.split()[0] in ("uint8", "int8", "uint16", "int16"):
            yield from _of_grids(case, index, operand)
        for axis in range(len(operand.shape) if shapes else 0):
            yield Factor(f"size {axis} of input {index}", SIZES, _Resized(case, index, axis))
    if shapes:
        yield Factor("leading dimensions of 1, added or left out", (-1, 1), lambda value: _ranked(case, int(value)))
        yield from _of_windows(case)


def _of_grids(case: Case, index: int, operand: CaseOperand) -> Iterator[Factor]:
    levels = np.subtract(*limits(case.slots[index].split()[0])[::-1])
    width = operand.high - operand.low

    def scaled(value: float) -> Case | None:
        factor = value * float(levels) / width
        return fitted(_with(case, index, replace(operand, low=operand.low * factor, high=operand.high * factor)))

    def ended(value: float) -> Case | None:
        low, high = ENDS[value]
        return fitted(_with(case, index, replace(operand, low=low * width, high=high * width)))

    def filled(value: float) -> Case | None:
        return fitted(_with(case, index, replace(operand, fill=value)))

    yield Factor(f"scale of input {index}", SCALES, scaled, ordered=True)
    if operand.low < 0 and "symmetric" not in case.slots[index]:
        yield Factor(f"zero point of input {index} at an end", tuple(ENDS), ended)
    if "constant" not in case.slots[index]:
        yield Factor(f"part of the grid of input {index} that values cover", FILLS, filled, ordered=True)


def _of_windows(case: Case) -> Iterator[Factor]:
    """Pads, strides and dilations of operators with windows; values number the variants."""
    spatial = len(case.template.operands[0].shape) - 2 if case.template.operands else 0
    if case.template.op not in ("Conv", "ConvTranspose", "MaxPool", "AveragePool") or spatial < 1:
        return
    variants: dict[str, list[list[int]]] = {
        "pads": [
            [1] * (2 * spatial),
            [1] * spatial + [0] * spatial,
            [0] * spatial + [1] * spatial,
            [int(i % spatial == 0) for i in range(2 * spatial)],
        ],
        "strides": [[step] * spatial for step in (1, 2, 3)] + [[1 + i % 2 for i in range(spatial)]],
        "dilations": [[2] * spatial],
    }
    for name, tried in variants.items():
        yield Factor(f"{name}, of {len(tried)} kinds number", tuple(range(len(tried))), _Windowed(case, name, tried))


@dataclass(frozen=True, slots=True)
class _Windowed:
    """A case with another value of an attribute, by its number."""

    case: Case
    name: str
    tried: Sequence[Sequence[int]]

    def __call__(self, value: float) -> Case | None:
        attributes = {**self.case.template.attributes, self.name: list(self.tried[int(value)])}
        return fitted(replace(self.case, template=replace(self.case.template, attributes=attributes)))


@dataclass(frozen=True, slots=True)
class _Resized:
    """A case with another size in one place, and in the places that have to follow."""

    case: Case
    index: int
    axis: int

    def __call__(self, value: float) -> Case | None:
        old = self.case.template.operands[self.index].shape[self.axis]
        if int(value) == old:
            return None
        places = [
            (i, axis)
            for i, operand in enumerate(self.case.template.operands)
            for axis, size in enumerate(operand.shape)
            if size == old and operand.role not in LITERALS
        ]
        own = (self.index, self.axis)
        others = [place for place in places if place[0] != self.index]
        pairs = [[place] for place in places if place != own]
        tries: list[list[tuple[int, int]]] = [[], *pairs, others, [place for place in places if place != own]]
        # With the number of groups, as much as possible changes: one that stays would make another operator of it.
        for also, group in [*((also, False) for also in tries), *((also, True) for also in reversed(tries))]:
            resized = self._sized([own, *also], old, int(value), group=group)
            found = fitted(resized) if resized is not None else None
            if found is not None:
                return found
        return None

    def _sized(self, places: list[tuple[int, int]], old: int, new: int, *, group: bool) -> Case | None:
        template = self.case.template
        attributes = dict(template.attributes)
        following = [key for key in ("group", "hidden_size") if attributes.get(key) == old]
        if group and not following:
            return None
        attributes |= dict.fromkeys(following if group else (), new)
        operands = list(template.operands)
        for index, axis in places:
            shape = operands[index].shape
            operands[index] = replace(operands[index], shape=(*shape[:axis], new, *shape[axis + 1 :]))
        return replace(self.case, template=replace(template, operands=tuple(operands), attributes=attributes))


def _ranked(case: Case, change: int) -> Case | None:
    """The activations with a leading dimension of 1 more or less."""
    operands = list(case.template.operands)
    for index, (operand, slot) in enumerate(zip(operands, case.slots, strict=True)):
        if operand.role in ("x", "y", "index", "index32", "bool") and slot != ABSENT:
            if change < 0 and (len(operand.shape) < 2 or operand.shape[0] != 1):
                return None
            shape = (1, *operand.shape) if change > 0 else operand.shape[1:]
            operands[index] = replace(operand, shape=shape)
    return fitted(replace(case, template=replace(case.template, operands=tuple(operands))))


def fitted(case: Case) -> Case | None:
    """The case with the range of its result measured in float; None where ONNX Runtime does not compute it."""
    found = _measured(in_float(case))
    if found is None:
        return None
    return case if case.template.fixed else replace(case, template=replace(case.template, own=found))


def chained(steps: Sequence[Case]) -> Chain | None:
    """The cases one after the other, each with the range that comes out of the one before it."""
    done: list[Case] = []
    for step in steps:
        if done:
            low, high = done[-1].template.own
            first = replace(step.template.operands[0], low=min(low, 0.0), high=max(high, 0.0))
            step = _with(step, 0, first)
        found = _measured(Chain((*map(in_float, done), in_float(step))))
        if found is None:
            return None
        done.append(step if step.template.fixed else replace(step, template=replace(step.template, own=found)))
    return Chain(tuple(done))


def in_float(case: Case) -> Case:
    """The case without any grid."""

    def plain(operand: CaseOperand, slot: str) -> str:
        if slot == ABSENT or operand.role in LITERALS or operand.role in ("index", "index32", "bool"):
            return slot
        return "float constant" if "constant" in slot.split() else "float"

    slots = tuple(map(plain, case.template.operands, case.slots))
    on_grid = case.output.split()[0] in ("uint8", "int8", "uint16", "int16")
    return Case(case.template, slots, "float" if on_grid else case.output)


def _with(case: Case, index: int, operand: CaseOperand) -> Case:
    operands: list[CaseOperand] = list(case.template.operands)
    operands[index] = operand
    template: Template = replace(case.template, operands=tuple(operands))
    return replace(case, template=template)


def _measured(asked: Case | Chain) -> tuple[float, float] | None:
    """The range of the first result in float."""
    try:
        found = next(iter(ort_cpu.Session(model_of(asked), threads=1).run(inputs_of(asked)).values()))
    # ONNX Runtime and the graph's own checks have no common base but Exception: what cannot be built is no case.
    except Exception:
        return None
    values = np.asarray(found, np.float64)
    if not values.size or not np.isfinite(values).all() or np.abs(values).max() > MOST:
        return None
    low, high = float(min(values.min(), 0.0)), float(max(values.max(), 0.0))
    return (low, high) if high > low else None
