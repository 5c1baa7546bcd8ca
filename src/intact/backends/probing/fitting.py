"""A factor of a question, and grids of results that fit what ONNX Runtime computes before it is rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from intact.backends.probing.cases import Case, CaseOperand, Chain, Template
from intact.backends.probing.models import inputs_of, model_of
from intact.records import dataclass
from intact.runtime import ort_cpu

ON_GRIDS = ("uint8", "int8", "uint16", "int16")
# Sums that leave what a float of 32 bits holds prove nothing.
MOST = 1e30


@dataclass(frozen=True, slots=True)
class Factor:
    """Something of a question that can be varied: its name, values to try, and the question at one, if there is one.

    Values of an ordered factor have an edge between a right one and a wrong one that can be narrowed. Those that only
    number something have `words`. At the value `usual` the question is the one that it varies.
    """

    name: str
    values: Sequence[float]
    at: Callable[[float], Case | Chain | None]
    ordered: bool = False
    words: Sequence[str] = ()
    usual: float | None = None

    def word(self, value: float) -> str:
        """One of its values in words."""
        return self.words[int(value)] if self.words else f"{value:.3g}"

    def told(self, values: Sequence[float]) -> str:
        """The factor at some of its values, in words."""
        return f"{self.name} {', '.join(map(self.word, values))}"


def numbered(name: str, words: Sequence[str], at: Callable[[float], Case | Chain | None]) -> Factor:
    """A factor whose values number `words`."""
    return Factor(name, tuple(range(len(words))), at, words=words)


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
            step = with_operand(
                step, place, replace(step.template.operands[place], low=min(low, 0.0), high=max(high, 0.0))
            )
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
    if len(sizes) != len(kernel):
        return False
    whole = [size + pads[i] + pads[i + len(kernel)] for i, size in enumerate(sizes)]
    return all(size >= k for size, k in zip(whole, kernel, strict=True))


def with_operand(case: Case, index: int, operand: CaseOperand) -> Case:
    """The case with another operand in one place."""
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
