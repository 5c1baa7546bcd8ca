"""16 bits where they cost least, for a model of which a device keeps too little and gets nothing wrong.

What a device rounds to 8 bits goes another way than on the CPU now and then. Over many numbers that averages out; few
numbers, as those behind a pool or in front of an output, carry it on. They are also the cheapest to compute finely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.errors import IntactError
from intact.model import edit, query
from intact.model.multiplications import elements, multiply_adds
from intact.numbers.decibels import sqnr_of
from intact.pipeline import execution
from intact.records import dataclass
from intact.search.debug.units import Unit, Units
from intact.search.mending.aim import Aim
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.grid_forms import finer, other_width

NARROW = "uint8"
# Parts of the cost that may be spent, each tried, and the dB that a form has to gain.
PARTS, LEAST_GAIN = (0.25, 0.5, 1.0), 0.5
# Forms that a target refuses are tried again without the units that it refuses, so many times.
MOST_TRIES = 3

Outputs = Sequence[Mapping[str, np.ndarray]]
# The outputs of a whole model on a device, for all rows.
OnDevice = Callable[[ir.Model], Outputs]


@dataclass(frozen=True, slots=True)
class WidenedForm:
    """A model with some units in 16 bits, and what is kept before and after, of what it would be without rounding."""

    model: ir.Model
    tensors: tuple[str, ...]
    before_db: float
    after_db: float

    def __str__(self) -> str:
        count = f"{len(self.tensors)} tensor{'s' if len(self.tensors) > 1 else ''}"
        kept = f"{self.before_db:.1f} dB became {self.after_db:.1f} dB"
        return f"{count} of few numbers get 16 bits, up to {self.tensors[-1]}: {kept}"


def widen_cheapest(model: ir.Model, aim: Aim, on_device: OnDevice) -> WidenedForm | None:
    """The form, of those with the cheapest units in 16 bits, of which the device keeps most; None if none gains."""
    order = _by_cost(model, aim)
    if not order:
        return None
    exact = execution.run(finer(model), map(dict, aim.rows))
    before = least_kept(exact, on_device(model))
    best: WidenedForm | None = None
    for form, tensors in _forms(model, order, aim):
        try:
            after = least_kept(exact, on_device(form))
        except IntactError:
            continue  # the compiler refuses this form
        if after >= (before + LEAST_GAIN if best is None else best.after_db):
            best = WidenedForm(form, tensors, before, after)
    return best


@dataclass(frozen=True, slots=True)
class _NarrowUnit:
    tensor: str
    nodes: frozenset[str]
    work: int


def _by_cost(model: ir.Model, aim: Aim) -> list[_NarrowUnit]:
    """The units on 8 bits, those first that multiply and move least; of equals the later one."""
    units, nodes = Units(model), {node.name: node for node in model.graph}
    narrow = [unit for unit in units.units if unit.tensor in aim.places and _is_narrow(units, unit)]
    found = [
        _NarrowUnit(unit.tensor, frozenset(unit.nodes), _work([nodes[name] for name in unit.nodes]))
        for unit in reversed(narrow)
    ]
    return sorted(found, key=lambda unit: unit.work)


def _work(inside: Sequence[ir.Node]) -> int:
    moved = (elements(value) for node in inside for value in (*_activations(node), *node.outputs))
    return sum(moved) + sum(map(multiply_adds, inside))


def _is_narrow(units: Units, unit: Unit) -> bool:
    grid = units.grids.get(unit.tensor)
    return grid is not None and grid.dtype == NARROW and grid.write.scale.size == 1 and bool(unit.nodes)


def _activations(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if value is not None and producer is not None and not query.is_constant(producer.inputs[0]):
            yield value


def _forms(model: ir.Model, order: Sequence[_NarrowUnit], aim: Aim) -> Iterator[tuple[ir.Model, tuple[str, ...]]]:
    """For each part of the cost that may be spent, the form with as many units in 16 bits as it pays for."""
    known: dict[int, tuple[ir.Model, tuple[str, ...]]] = {}
    for part in PARTS:
        low, high = 0, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            known[middle] = known.get(middle) or _taken(model, order[:middle], aim)
            low, high = (middle, high) if aim.is_affordable(known[middle][0], part) else (low, middle - 1)
        if low in known and known[low][1]:
            yield known.pop(low)


def _taken(model: ir.Model, units: Sequence[_NarrowUnit], aim: Aim) -> tuple[ir.Model, tuple[str, ...]]:
    """The model with these units in 16 bits, without those that its target refuses so."""
    for _ in range(MOST_TRIES):
        form, done = _widened(model, {unit.tensor for unit in units})
        refused = aim.refused(form)
        if not refused:
            return form, done
        units = [unit for unit in units if not refused & unit.nodes]
    return model, ()


def _widened(model: ir.Model, tensors: Collection[str]) -> tuple[ir.Model, tuple[str, ...]]:
    """A copy with these units in 16 bits, each reading what the one before it writes."""
    form = model.clone()
    names = [value.name or "" for node in model.graph for value in node.outputs if value.name in tensors]
    done = tuple(name for name in names if other_width(FaultSite(form, name)) is not None)
    edit.prune(form)
    form.graph.sort()
    return form, done


def least_kept(expected: Outputs, found: Outputs) -> float:
    """The SQNR over all rows, of the output of which least is kept."""
    rows = range(len(expected))
    return min(
        sqnr_of(*(np.stack([np.asarray(one[row][name]) for row in rows]) for one in (expected, found)))
        for name in expected[0]
    )
