"""Looks for what a compiler gets wrong, and for a form of it that it gets right, as the simulator confirms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.errors import IntactError
from intact.model import edit
from intact.pipeline import execution
from intact.pipeline.mending import ENOUGH_DB, Mended, TakenForm, Unmended
from intact.records import dataclass
from intact.search.debug.device import DeviceComparison, UnitError, run_whole, simulator_of, worst_rows
from intact.search.debug.units import Unit, Units
from intact.search.mending.aim import Aim, Rows, aim_of
from intact.search.mending.fault_site import FaultSite
from intact.search.mending.other_forms import REMEDIES
from intact.search.mending.widening import widen_cheapest
from intact.settings.config import CompileConfig
from intact.targets.spec import Target

# Places that are looked for one after the other, and the gain in dB that makes a form worth taking; of a weak place
# less is enough, since the whole has to gain by it.
MOST_PLACES = 6
LEAST_GAIN, LEAST_GAIN_OF_WEAK = 6.0, 3.0
# Where no place is wrong, so many of the weakest are looked at, if the device keeps less than this of each; what they
# get may cost so many times as much.
WEAKEST, WEAK_DB, MOST_COST = 4, 45.0, 1.05
# Digits of a price behind the point: less is no difference.
PRICED_TO = 6


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


@dataclass(frozen=True, slots=True)
class _UntriedForm:
    """Another form of a unit, which the device has not confirmed yet."""

    model: ir.Model
    remedy: str
    done: str


def mend(
    model: ir.Model, rows: Rows, target: Target, config: CompileConfig, goal_db: float = ENOUGH_DB
) -> Mended | None:
    """Take the first right form of each piece that the compiler gets wrong; None where none is, or nothing can be told.

    Where none is wrong and the device still keeps less than `goal_db` of what the CPU computes, its weakest pieces get
    a form that it computes better, one after the other, and then the cheapest get 16 bits.
    """
    simulator = simulator_of(target)
    if simulator is None:
        return None
    device, taken = execution.device_of(target, config), list[tuple[TakenForm, str]]()
    aim = aim_of(model, rows, target, goal_db, MOST_COST)
    hopeless = dict[str, UnitError]()
    for _ in range(MOST_PLACES):
        comparison = DeviceComparison(model, worst_rows(model, rows, simulator, device), simulator, device)
        found = _next_forms(comparison, aim, hopeless)
        if not found:
            break
        for wrong, form in found:
            model = form.model
            figures = (wrong.error.own_db, form.error.own_db, wrong.alone)
            taken.append((TakenForm(wrong.error.unit.tensor, form.remedy, *figures), form.done))
    done = [told for _, told in taken]
    if not _is_enough(comparison.kept_db(), goal_db):
        widened = widen_cheapest(model, aim, lambda form: run_whole(form, rows, simulator, device))
        model, done = (model, done) if widened is None else (widened.model, [*done, str(widened)])
    unmended = tuple(Unmended(error.unit.nodes, _unhelped(error)) for error in hopeless.values())
    return Mended(model, tuple(done), tuple(place for place, _ in taken), unmended) if done or unmended else None


def _unhelped(error: UnitError) -> str:
    return f"{error.unit.node} ({error.unit.op}) keeps {_db(error.own_db)} on the device in every form that was tried"


def _is_enough(kept: float | None, goal_db: float) -> bool:
    return kept is None or kept >= goal_db


def _next_forms(comparison: DeviceComparison, aim: Aim, hopeless: dict[str, UnitError]) -> list[tuple[_Fault, _Form]]:
    """The next place with the form that it gets, or places: each form is made in the model of the one before it.

    It is the first that is wrong and has a better form; those without one are added to the `hopeless`. Where nothing is
    wrong, it is the weak one that gains most, or all of them, if they gain more together.
    """
    errors = [error for error in _errors(comparison) if error.unit.tensor in aim.places]
    for wrong in _faults(comparison, errors, hopeless):
        form = right_form(comparison, wrong.error, aim)
        if form is not None:
            return [(wrong, form)]
        hopeless[wrong.error.unit.tensor] = wrong.error
        if len(hopeless) == MOST_PLACES:
            break
    if hopeless:
        return []
    kept = comparison.kept_db()
    if kept is None or _is_enough(kept, aim.goal_db):
        return []
    best: list[tuple[_Fault, _Form]] = []
    each = [(_Fault(error, alone=True), form) for error, form in _better_forms(comparison, _weakest(errors), aim)]
    for forms in ([one] for one in each):
        whole = _kept_by_whole(comparison, forms[-1][1])
        if whole > kept:
            best, kept = forms, whole
    together = _one_in_the_other(each, aim) if len(each) > 1 else []
    return together if together and _kept_by_whole(comparison, together[-1][1]) > kept else best


def _one_in_the_other(each: Sequence[tuple[_Fault, _Form]], aim: Aim) -> list[tuple[_Fault, _Form]]:
    """Several places with their forms in one model, as many as are affordable."""
    remedies = {remedy.__name__: remedy for remedy in REMEDIES}
    found: list[tuple[_Fault, _Form]] = [each[0]]
    for fault, form in each[1:]:
        model, unit = found[-1][1].model, fault.error.unit
        site = FaultSite(model.clone(), unit.tensor, seen_ranges(model, unit.reads, aim.rows))
        if remedies[form.remedy](site) is None:
            continue
        edit.prune(site.model)
        site.model.graph.sort()
        if aim.is_affordable(site.model) and not aim.refused(site.model):
            found.append((fault, replace(form, model=site.model)))
    return found


def _kept_by_whole(comparison: DeviceComparison, form: _Form) -> float:
    try:
        found = comparison.kept_db(Units(form.model))
    except IntactError:
        return -np.inf  # the compiler refuses this form of the whole
    return np.inf if found is None else found


def _errors(comparison: DeviceComparison) -> list[UnitError]:
    """The error of each unit by itself; none where the compiler does not take all units of a model side by side."""
    try:
        return comparison.errors()
    except IntactError:
        return []


def _faults(comparison: DeviceComparison, errors: Sequence[UnitError], hopeless: Collection[str]) -> Iterator[_Fault]:
    """The units that are wrong alone and where they stand, and then those that are so only behind what is before them.

    Of a unit behind a `hopeless` one nothing can be told.
    """

    def is_open(unit: Unit) -> bool:
        return not any(before.tensor in hopeless for before in comparison.line(unit))

    for unit in (error.unit for error in errors if error.parted):
        if is_open(unit) and (there := comparison.behind_all(unit)).parted:
            yield _Fault(there, alone=True)
    yield from (_Fault(joined, alone=False) for joined in comparison.together() if is_open(joined.unit))


def _weakest(errors: Sequence[UnitError]) -> list[UnitError]:
    """The units of which the device keeps least, the weakest first."""
    weak = [error for error in errors if error.own_db is not None and error.own_db < WEAK_DB]
    return sorted(weak, key=lambda error: error.own_db or 0.0)[:WEAKEST]


def seen_ranges(model: ir.Model, tensors: Sequence[str], rows: Rows) -> dict[str, tuple[float, float]]:
    """The least and the greatest value of each of some tensors, over all rows; zero is always between them."""
    found = dict.fromkeys(tensors, (0.0, 0.0))
    for seen in execution.inside(model, list(found), map(dict, rows)):
        found = {
            name: (min(low, float(seen[name].min(initial=0))), max(high, float(seen[name].max(initial=0))))
            for name, (low, high) in found.items()
        }
    return found


def _drafts(comparison: DeviceComparison, unit: Unit, aim: Aim) -> list[_UntriedForm]:
    """The other forms of a unit that the target takes, in the order of what they cost; those of one cost as listed."""
    model = comparison.units.cutter.model
    seen = seen_ranges(model, unit.reads, aim.rows)
    found = []
    for remedy in REMEDIES:
        site = FaultSite(model.clone(), unit.tensor, seen)
        done = remedy(site)
        if done is not None:
            edit.prune(site.model)
            site.model.graph.sort()
            if not aim.refused(site.model):
                found.append(_UntriedForm(site.model, remedy.__name__, done))
    # Fewer bits cost less, and are no reason to take them.
    return sorted(found, key=lambda draft: max(1.0, round(aim.price(draft.model), PRICED_TO)))


def right_form(comparison: DeviceComparison, wrong: UnitError, aim: Aim) -> _Form | None:
    """The first form of a unit that is right where it stands; else the best, if it gains enough."""
    forms: list[_Form] = []
    for draft in _drafts(comparison, wrong.unit, aim):
        try:
            error = comparison.behind_all(wrong.unit, Units(draft.model))
        except IntactError:
            continue  # the compiler refuses this form
        if _gains(wrong, error):
            forms.append(_confirmed(draft, wrong, error))
            if not error.parted:
                return forms[-1]
    return max(forms, key=lambda form: np.inf if form.error.own_db is None else form.error.own_db, default=None)


def _better_forms(
    comparison: DeviceComparison, weak: Sequence[UnitError], aim: Aim
) -> Iterator[tuple[UnitError, _Form]]:
    """For each weak unit, the first form that it can be given and that the device computes better by itself."""
    for error in weak:
        drafts = [draft for draft in _drafts(comparison, error.unit, aim) if aim.is_affordable(draft.model)]
        found = zip(drafts, _by_themselves(comparison, error.unit, drafts), strict=True)
        better = (
            (draft, after) for draft, after in found if after is not None and _gains(error, after, LEAST_GAIN_OF_WEAK)
        )
        first = next(better, None)
        if first is not None:
            yield error, _confirmed(first[0], error, first[1])


def _by_themselves(comparison: DeviceComparison, unit: Unit, drafts: Sequence[_UntriedForm]) -> list[UnitError | None]:
    """The error of each form of a unit, all of them asked about at once; None for one that the compiler refuses."""
    forms = [(unit, Units(draft.model)) for draft in drafts]
    try:
        return [*comparison.by_themselves(forms)] if forms else []
    except IntactError:
        return [None] if len(drafts) == 1 else [_by_themselves(comparison, unit, [one])[0] for one in drafts]


def _gains(before: UnitError, after: UnitError, least: float = LEAST_GAIN) -> bool:
    assert before.own_db is not None, "a unit that gets another form has an error"
    return after.own_db is None or after.own_db >= before.own_db + least


def _confirmed(draft: _UntriedForm, before: UnitError, after: UnitError) -> _Form:
    told = f"{draft.done}: {_db(before.own_db)} became {_db(after.own_db)} at {before.unit.tensor}"
    return _Form(draft.model, after, draft.remedy, told)


def _db(found: float | None) -> str:
    return "no error" if found is None else f"{found:.1f} dB"
