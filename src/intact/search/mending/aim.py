"""The aim of mending: what is enough, where forms may change, and which of them are allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.model import normalize, shapes
from intact.pipeline import cost_estimate
from intact.search.debug.units import Units
from intact.targets import validate
from intact.targets.spec import Costs, Target

Rows = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Aim:
    """The dB that are enough, the places where forms may change, and the forms that a device may be given.

    Only tensors of the first form are places: what a form has inside may differ and not matter, as halves do that are
    added up again.
    """

    rows: Rows
    goal_db: float
    places: set[str]
    is_affordable: Callable[[ir.Model, float], bool]
    """True for a form that costs no more than the cost that is allowed, or than a part of what is allowed beyond."""
    refused: Callable[[ir.Model], set[str]]
    """The nodes of a form that the target's table refuses, but for those that it refuses of the first one."""


def aim_of(model: ir.Model, rows: Rows, target: Target, goal_db: float, most_cost: float) -> Aim:
    """The aim for a model: forms of it may cost so many times as much, and break no rule of the table that it keeps."""
    places = {unit.tensor for unit in Units(model).units}
    known = _refused(model, target)
    affordable = _within(most_cost - 1, model, target.costs)
    # A build refuses such forms in the end, after all that is spent on them.
    return Aim(rows, goal_db, places, affordable, lambda form: _refused(form, target) - known)


def _within(more: float, model: ir.Model, costs: Costs | None) -> Callable[[ir.Model, float], bool]:
    """Tell forms that cost at most so much more than a model, or a part of it, by the rule of a table if it has one."""
    if costs is None:
        return lambda form, part: True
    first = cost_estimate.prices(model, costs, ())[0]
    return lambda form, part: cost_estimate.prices(form, costs, ())[0] <= first * (1 + part * more)


def _refused(model: ir.Model, target: Target) -> set[str]:
    described = model.clone()
    normalize.name_nodes(described)
    shapes.infer_shapes(described)
    return {violation.node for violation in validate.validate(described, target, strict=False)}
