"""Looks for what a compiler gets wrong, and for a form of it that it gets right, as the simulator confirms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import IntactError
from intact.model import edit
from intact.pipeline import execution
from intact.pipeline.mending import Mended, TakenForm
from intact.search.debug.device import DeviceComparison, UnitError, simulator_of, worst_rows
from intact.search.debug.units import Units
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.other_forms import REMEDIES
from intact.settings.config import CompileConfig
from intact.targets.spec import Target

# Places that are looked for one after the other, and the gain in dB that makes a form worth taking.
MOST_PLACES = 6
LEAST_GAIN = 6.0


@dataclass(frozen=True, slots=True)
class _Form:
    model: ir.Model
    error: UnitError
    remedy: str
    done: str


@dataclass(frozen=True, slots=True)
class _Fault:
    """A unit that is wrong where it stands, `alone` too or only there."""

    error: UnitError
    alone: bool


def mend(
    model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], target: Target, config: CompileConfig
) -> Mended | None:
    """Take the first right form of each piece that the compiler gets wrong; None where nothing helped."""
    simulator = simulator_of(target)
    if simulator is None:
        return None
    device, done, taken = execution.device_of(target, config), [], []
    for _ in range(MOST_PLACES):
        comparison = DeviceComparison(model, worst_rows(model, rows, simulator, device), simulator, device)
        wrong = _first_wrong(comparison)
        if wrong is None:
            break
        error = wrong.error
        form = _right_form(comparison, error, reach(model, error.unit.reads, rows))
        if form is None:
            break
        model = form.model
        done.append(form.done)
        taken.append(TakenForm(error.unit.tensor, form.remedy, error.own_db, form.error.own_db, wrong.alone))
    return Mended(model, tuple(done), tuple(taken)) if done else None


def _first_wrong(comparison: DeviceComparison) -> _Fault | None:
    """The first unit that is wrong alone and where it stands, or else only behind all that is before it."""
    try:
        alone = [error.unit for error in comparison.errors() if error.parted]
    except IntactError:
        alone = []  # the compiler takes the model, but not all of its units side by side
    there = next((error for error in map(comparison.behind_all, alone) if error.parted), None)
    if there is not None:
        return _Fault(there, alone=True)
    joined = comparison.together()
    return None if joined is None else _Fault(joined, alone=False)


def reach(model: ir.Model, tensors: Sequence[str], rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """The greatest absolute value of each of some tensors, over all rows."""
    most = dict.fromkeys(tensors, 0.0)
    for seen in execution.inside(model, list(most), map(dict, rows)):
        most = {name: max(value, float(np.abs(seen[name]).max(initial=0))) for name, value in most.items()}
    return most


def _right_form(comparison: DeviceComparison, wrong: UnitError, seen: Mapping[str, float]) -> _Form | None:
    """The first form of a unit that is right where it stands; else the best, if it gains enough."""
    assert wrong.own_db is not None, "a unit that is wrong has an error"
    forms: list[_Form] = []
    for remedy in REMEDIES:
        site = FaultSite(comparison.units.cutter.model.clone(), wrong.unit.tensor, seen)
        done = remedy(site)
        if done is None:
            continue
        edit.prune(site.model)
        site.model.graph.sort()
        try:
            error = comparison.behind_all(wrong.unit, Units(site.model))
        except IntactError:
            continue  # the compiler refuses this form
        if error.own_db is None or error.own_db >= wrong.own_db + LEAST_GAIN:
            told = f"{done}: {_db(wrong.own_db)} became {_db(error.own_db)} at {wrong.unit.tensor}"
            forms.append(_Form(site.model, error, remedy.__name__, told))
            if not error.parted:
                return forms[-1]
    return max(forms, key=lambda form: np.inf if form.error.own_db is None else form.error.own_db, default=None)


def _db(found: float | None) -> str:
    return "no error" if found is None else f"{found:.1f} dB"
