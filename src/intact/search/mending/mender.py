"""Looks for what a compiler gets wrong, and for a form of it that it gets right, as the simulator confirms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.errors import IntactError
from intact.pipeline import execution
from intact.pipeline.mending import Mended
from intact.search.debug.device import SIMULATED_ROWS, DeviceComparison, UnitError, simulator_of
from intact.search.mending.other_forms import REMEDIES, FaultSite
from intact.settings.config import CompileConfig
from intact.targets.spec import Target

# Places that are looked for one after the other, and the gain in dB that makes a form worth taking.
MOST_PLACES = 6
LEAST_GAIN = 6.0


@dataclass(frozen=True, slots=True)
class _Form:
    model: ir.Model
    error: UnitError
    done: str


def mend(
    model: ir.Model, rows: Sequence[Mapping[str, np.ndarray]], target: Target, config: CompileConfig
) -> Mended | None:
    """Take the first right form of each piece that the compiler gets wrong; None where nothing helped."""
    simulator = simulator_of(target)
    if simulator is None:
        return None
    device, done = execution.device_of(target, config), []
    for _ in range(MOST_PLACES):
        comparison = DeviceComparison(model, rows[:SIMULATED_ROWS], simulator, device)
        wrong = _first_wrong(comparison)
        form = None if wrong is None else _right_form(comparison, wrong)
        if form is None:
            break
        model = form.model
        done.append(form.done)
    return Mended(model, tuple(done)) if done else None


def _first_wrong(comparison: DeviceComparison) -> UnitError | None:
    """The first unit that is wrong alone, or else behind all that is before it."""
    try:
        alone = next((error for error in comparison.errors() if error.parted), None)
    except IntactError:
        alone = None  # the compiler takes the model, but not all of its units side by side
    return comparison.together() if alone is None else comparison.behind_all(alone.unit)


def _right_form(comparison: DeviceComparison, wrong: UnitError) -> _Form | None:
    """The first form of a unit that is right where it stands; else the best, if it gains enough."""
    forms: list[_Form] = []
    seen = comparison.inputs_of(wrong.unit)
    reach = {name: float(np.abs(value).max(initial=0)) for name, value in seen.items() if value.dtype.kind == "f"}
    for remedy in REMEDIES:
        site = FaultSite(comparison.units.cutter.model.clone(), wrong.unit.tensor, reach)
        done = remedy(site)
        if done is None:
            continue
        site.model.graph.sort()
        try:
            error = comparison.judged(site.model, wrong.unit)
        except IntactError:
            continue  # the compiler refuses this form
        before, after = (e.own_db for e in (wrong, error))
        form = _Form(site.model, error, f"{done}: {_db(before)} became {_db(after)} at {wrong.unit.tensor}")
        if not error.parted and (before is None or after is None or after >= before + LEAST_GAIN):
            return form
        forms.append(form)
    forms = [f for f in forms if wrong.own_db is not None and (f.error.own_db or 0) >= wrong.own_db + LEAST_GAIN]
    return max(forms, key=lambda form: form.error.own_db or 0, default=None)


def _db(found: float | None) -> str:
    return "no error" if found is None else f"{found:.1f} dB"
