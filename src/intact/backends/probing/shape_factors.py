"""Sizes, ranks and windows of a question, one at a time and two at a time.

Sizes that have to change together are found by trying: the first change that ONNX Runtime computes is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from intact.backends.probing.cases import ABSENT, LITERALS, Case, Chain
from intact.backends.probing.fitting import Factor, fitted, numbered
from intact.records import dataclass

SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 65)
# Sizes for two at a time, and for further types: none, one that registers hold, and one that they do not.
PAIRED = (1, 16, 33)
# Windows for two at a time are those that layers have: one of 33 beside 33 numbers takes a compiler half a minute.
WINDOWS = (1, 3, 5)
RANKS = "leading dimensions of 1, added or left out"
WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool")


def shape_factors(case: Case, sizes: Sequence[int] = SIZES, *, whole: bool = False) -> Iterator[Factor]:
    """The sizes of each input, the rank, and pads, strides and the like of operators with windows.

    Unless `whole`, the sizes that the case has are left out: they are no other question.
    """
    for index, (operand, slot) in enumerate(zip(case.template.operands, case.slots, strict=True)):
        if slot == ABSENT or operand.role in LITERALS:
            continue
        for axis in range(len(operand.shape)):
            yield Factor(f"size {axis} of input {index}", sizes, _Resized(case, index, axis, whole))
    yield Factor(RANKS, (-1, 1), lambda value: _ranked(case, int(value)))
    yield from _of_windows(case)


def paired(case: Case, wrong: Callable[[Factor], Sequence[float]]) -> Iterator[Factor]:
    """Two of the shape factors of a case together, without values that are `wrong` alone.

    The number of samples is none of them: each is computed for itself.
    """
    places = [(i, o) for i, o in enumerate(case.template.operands) if o.role in ("x", "y") and len(o.shape) > 2]
    leading = {f"size 0 of input {i}" for i, _ in places}
    several = (factor for factor in shape_factors(case) if factor.name not in leading and factor.name != RANKS)
    for first, second in itertools.combinations(several, 2):
        every = list(itertools.product(_of_pairs(case, first), _of_pairs(case, second)))
        alone = [set(wrong(factor)) for factor in (first, second)]
        asked = [i for i, pair in enumerate(every) if not any(v in bad for v, bad in zip(pair, alone, strict=True))]
        words = [f"{first.word(one)} and {second.word(other)}" for one, other in every]
        both = f"{first.name} and {second.name}"
        yield Factor(both, asked, _Together(case, (first.name, second.name), every), words=words)


def _of_pairs(case: Case, factor: Factor) -> Sequence[float]:
    """The values of a factor that are asked about beside those of another one."""
    if factor.words:
        return factor.values
    windows = {f"size {axis} of input 1" for axis in range(2, len(case.template.operands[0].shape))}
    sizes = WINDOWS if case.template.op in WINDOWED and factor.name in windows else PAIRED
    return [value for value in factor.values if value in sizes]


def around(factor: Factor, value: float) -> Iterator[Factor]:
    """The shape factors of a question at a value of a factor: what else it takes to be wrong there."""
    corner = factor.at(value)
    assert isinstance(corner, Case), "what was asked can be asked again"
    for other in (one for one in shape_factors(corner, whole=True) if one.name != factor.name):
        yield replace(other, name=f"where {factor.told([value])}, {other.name}")


@dataclass(frozen=True, slots=True)
class _Together:
    """A case with two of its shape factors at other values, by the number of these."""

    case: Case
    names: tuple[str, str]
    values: Sequence[tuple[float, float]]

    def __call__(self, value: float) -> Case | None:
        steps = list(zip(self.names, self.values[int(value)], strict=True))
        # A size may be none without the windows that the other factor gives.
        return self._after(steps) or self._after(steps[::-1])

    def _after(self, steps: Sequence[tuple[str, float]]) -> Case | None:
        found: Case | Chain | None = self.case
        for name, wanted in steps:
            if isinstance(found, Case):
                found = next(factor for factor in shape_factors(found) if factor.name == name).at(wanted)
        return found if isinstance(found, Case) else None


def _of_windows(case: Case) -> Iterator[Factor]:
    """Pads, strides and dilations of operators with windows; values number the variants."""
    spatial = len(case.template.operands[0].shape) - 2 if case.template.operands else 0
    if case.template.op not in WINDOWED or spatial < 1:
        return
    variants: dict[str, list[list[int]]] = {
        "pads": [
            [1] * (2 * spatial),
            [1] * spatial + [0] * spatial,
            [0] * spatial + [1] * spatial,
            *([int(i % spatial == axis) for i in range(2 * spatial)] for axis in range(spatial)),
        ],
        "strides": [
            *([step] * spatial for step in (1, 2, 3)),
            [1 + i % 2 for i in range(spatial)],
            *([1 + (i == axis) for i in range(spatial)] for axis in range(spatial if spatial > 1 else 0)),
        ],
        "dilations": [[2] * spatial],
    }
    if case.template.op in ("MaxPool", "AveragePool"):
        variants["kernel_shape"] = [[1] * spatial, [3] * spatial, [4] * spatial, [2 + i % 2 for i in range(spatial)]]
    for name, numbers in variants.items():
        tried = [list(one) for one in dict.fromkeys(map(tuple, numbers))]
        yield numbered(name, list(map(str, tried)), _Windowed(case, [{name: one} for one in tried]))
    if case.template.op in ("MaxPool", "AveragePool"):
        whole = {"kernel_shape": [3] * spatial, "strides": [2] * spatial}
        padded = {**whole, "pads": [1] * (2 * spatial)}
        pools: list[dict[str, Any]] = [{**whole, "ceil_mode": 1}, {**padded, "ceil_mode": 1}]
        pools += [{**padded, "strides": [1] * spatial}]
        pools += [{**padded, "count_include_pad": 1}] if case.template.op == "AveragePool" else []
        words = [", ".join(f"{key} {value}" for key, value in one.items()) for one in pools]
        yield numbered("a pool of", words, _Windowed(case, pools))


@dataclass(frozen=True, slots=True)
class _Windowed:
    """A case with other values of attributes, by their number."""

    case: Case
    tried: Sequence[Mapping[str, Any]]

    def __call__(self, value: float) -> Case | None:
        attributes = {**self.case.template.attributes, **self.tried[int(value)]}
        return fitted(replace(self.case, template=replace(self.case.template, attributes=attributes)))


@dataclass(frozen=True, slots=True)
class _Resized:
    """A case with another size in one place, and in the places that have to follow."""

    case: Case
    index: int
    axis: int
    whole: bool = False

    def __call__(self, value: float) -> Case | None:
        old = self.case.template.operands[self.index].shape[self.axis]
        if int(value) == old:
            return self.case if self.whole else None
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
