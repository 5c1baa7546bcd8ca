"""Factors of a question that can be varied, one at a time: scales, zero points, values, sizes, ranks, attributes.

A factor makes a case of another one and a number. Sizes that have to change together are found by trying: the first
change that ONNX Runtime computes is taken. The grid of a result follows from what ONNX Runtime computes before it is
rounded, unless that grid is the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intact.backends.probing.cases import ABSENT, LITERALS, Case, CaseOperand, Chain, Template
from intact.backends.probing.models import inputs_of, model_of
from intact.numbers.integer_types import limits
from intact.runtime import ort_cpu

SCALES = tuple(10.0**power for power in range(-7, 4))
FILLS = (1 / 64, 1 / 16, 1 / 4, 1.0, 2.0)
SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 65)
# Factors of the range of an input behind another operator.
RATIOS = tuple(4.0**power for power in (-6, -4, -2, -1, 1, 2, 4, 6))
ENDS = (("from 0 up", (0.0, 1.0)), ("up to 0", (-1.0, 0.0)), ("alike on both sides", (-1.0, 1.0)))
ON_GRIDS = ("uint8", "int8", "uint16", "int16")
# Grids of a result, as parts of the range that it has.
RESULTS = (
    *(("cut off at 0, as by a Relu", (0.0, 1.0)), ("4 times as wide", (4.0, 4.0))),
    *(("16 times as wide", (16.0, 16.0)), ("half as wide", (0.5, 0.5))),
)
# So many of them are asked about between operators.
CHAINED = 2
# Sums that leave what a float of 32 bits holds prove nothing.
MOST = 1e30


@dataclass(frozen=True, slots=True)
class Factor:
    """Something of a question that can be varied: its name, values to try, and the question at one, if there is one.

    Values of an ordered factor have an edge between a right one and a wrong one that can be narrowed. Those that only
    number something have `words`.
    """

    name: str
    values: Sequence[float]
    at: Callable[[float], Case | Chain | None]
    ordered: bool = False
    words: Sequence[str] = ()

    def told(self, values: Sequence[float]) -> str:
        """The factor at some of its values, in words."""
        words = [self.words[int(value)] if self.words else f"{value:.3g}" for value in values]
        return f"{self.name} {', '.join(words)}"


def factors_of(case: Case, *, shapes: bool = True) -> Iterator[Factor]:
    """All factors of a case, or without `shapes` only those of its grids and values."""
    for index, (operand, slot) in enumerate(zip(case.template.operands, case.slots, strict=True)):
        if slot == ABSENT or operand.role in LITERALS or not operand.shape:
            continue
        if slot.split()[0] in ON_GRIDS:
            yield from _of_grids(case, index, operand)
        for axis in range(len(operand.shape) if shapes else 0):
            yield Factor(f"size {axis} of input {index}", SIZES, _Resized(case, index, axis))
    if case.grid == "own" and not case.template.keeps_range and case.output.split()[0] in ON_GRIDS:
        yield _numbered("grid of the result", [word for word, _ in RESULTS], _Regridded(case))
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
        low, high = ENDS[int(value)][1]
        return fitted(_with(case, index, replace(operand, low=low * width, high=high * width)))

    def filled(value: float) -> Case | None:
        return fitted(_with(case, index, replace(operand, fill=value)))

    yield Factor(f"scale of input {index}", SCALES, scaled, ordered=True)
    if operand.low < 0 and "symmetric" not in case.slots[index]:
        yield _numbered(f"range of input {index}", [word for word, _ in ENDS], ended)
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
    if case.template.op in ("MaxPool", "AveragePool"):
        variants["kernel_shape"] = [[1] * spatial, [3] * spatial, [4] * spatial, [2 + i % 2 for i in range(spatial)]]
    for name, tried in variants.items():
        yield _numbered(name, list(map(str, tried)), _Windowed(case, name, tried))


def _numbered(name: str, words: Sequence[str], at: Callable[[float], Case | Chain | None]) -> Factor:
    return Factor(name, tuple(range(len(words))), at, words=words)


def factors_between(chain: Chain) -> Iterator[Factor]:
    """Grids between operators, and the range of each input that meets the result of an operator before."""
    for number, step in enumerate(chain.steps[:-1]):
        if step.grid == "own" and not step.template.keeps_range and step.template.own[0] < 0:
            name = f"grid between {step.template.name} and {chain.steps[number + 1].template.name}"
            yield _numbered(name, [word for word, _ in RESULTS[:CHAINED]], _RegriddedBetween(chain, number))
    for number, step in enumerate(chain.steps[1:], 1):
        for index, (operand, slot) in enumerate(zip(step.template.operands, step.slots, strict=True)):
            if operand.role == "y" and slot.split()[0] in ON_GRIDS:
                name = f"range of input {index} of {step.template.name}, times"
                yield Factor(name, RATIOS, _Widened(chain, number, index), ordered=True)


@dataclass(frozen=True, slots=True)
class _RegriddedBetween:
    """A chain with another grid behind one of its operators, by its number."""

    chain: Chain
    number: int

    def __call__(self, value: float) -> Chain | None:
        return chained(self.chain.steps, {self.number: RESULTS[int(value)][1]})


@dataclass(frozen=True, slots=True)
class _Widened:
    """A chain with another range of one input of one of its operators."""

    chain: Chain
    number: int
    index: int

    def __call__(self, value: float) -> Chain | None:
        steps = list(self.chain.steps)
        operand = steps[self.number].template.operands[self.index]
        other = replace(operand, low=operand.low * value, high=operand.high * value)
        steps[self.number] = _with(steps[self.number], self.index, other)
        return chained(steps)


@dataclass(frozen=True, slots=True)
class _Regridded:
    """A case with another grid for its result, by its number."""

    case: Case

    def __call__(self, value: float) -> Case | None:
        found = fitted(self.case)
        if found is None:
            return None
        low, high = (part * end for part, end in zip(RESULTS[int(value)][1], found.template.own, strict=True))
        return replace(found, template=replace(found.template, own=(low, high))) if high > low else None


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
    """The case with the range that its result has before it is rounded; None where ONNX Runtime does not compute it."""
    found = _measured(unrounded(case)) if _has_room(case) else None
    if found is None:
        return None
    return case if case.template.keeps_range else replace(case, template=replace(case.template, own=found))


def chained(steps: Sequence[Case], parts: Mapping[int, tuple[float, float]] | None = None) -> Chain | None:
    """The cases one after the other, each with the range that comes out of the one before it, or with parts of it."""
    done: list[Case] = []
    for number, step in enumerate(steps):
        if done:
            low, high = done[-1].template.own
            place = step.template.follows
            step = _with(step, place, replace(step.template.operands[place], low=min(low, 0.0), high=max(high, 0.0)))
        found = _measured(Chain((*done, unrounded(step))))
        if found is None:
            return None
        low, high = (part * end for part, end in zip((parts or {}).get(number, (1.0, 1.0)), found, strict=True))
        template = step.template if step.template.keeps_range else replace(step.template, own=(low, high))
        done.append(replace(step, template=template))
    return Chain(tuple(done))


def unrounded(case: Case) -> Case:
    """The case with the same numbers and its result on no grid."""
    on_grid = case.output.split()[0] in ON_GRIDS
    return Case(case.template, case.slots, "float" if on_grid else case.output, drawn_as=case.drawn_as or case.name)


def _has_room(case: Case) -> bool:
    """True unless a pool has a window that is larger than what it reads, of which ONNX says nothing."""
    kernel = case.template.attributes.get("kernel_shape")
    if kernel is None:
        return True
    pads = case.template.attributes.get("pads", [0] * (2 * len(kernel)))
    sizes = case.template.operands[0].shape[2:]
    whole = [size + pads[i] + pads[i + len(kernel)] for i, size in enumerate(sizes)]
    return len(sizes) == len(kernel) and all(size >= k for size, k in zip(whole, kernel, strict=True))


def _with(case: Case, index: int, operand: CaseOperand) -> Case:
    operands: list[CaseOperand] = list(case.template.operands)
    operands[index] = operand
    template: Template = replace(case.template, operands=tuple(operands))
    return replace(case, template=template)


def _measured(asked: Case | Chain) -> tuple[float, float] | None:
    """The range of the first result."""
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
