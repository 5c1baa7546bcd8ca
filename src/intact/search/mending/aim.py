"""The aim of mending: what is enough, where forms may change, and which of them are allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from intact.model import normalize, shapes
from intact.pipeline import cost_estimate
from intact.records import dataclass
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
    price: Callable[[ir.Model], float]
    """The cost of a form as a multiple of that of the first one, by the rule of a table if it has one."""
    more_cost: float
    """The part of its cost that a form may cost more."""
    refused: Callable[[ir.Model], set[str]]
    """The nodes of a form that the target's table refuses, but for those that it refuses of the first one."""

    def is_affordable(self, form: ir.Model, part: float = 1.0) -> bool:
        """True for a form that costs no more than is allowed, or than a part of what is allowed beyond the first."""
        return self.price(form) <= 1 + part * self.more_cost


def aim_of(model: ir.Model, rows: Rows, target: Target, goal_db: float, most_cost: float) -> Aim:
    """The aim for a model: forms of it may cost so many times as much, and break no rule of the table that it keeps."""
    places = {unit.tensor for unit in Units(model).units}
    known = _refused(model, target)
    # A build refuses such forms in the end, after all that is spent on them.
    return Aim(
        rows,
        goal_db,
        places,
        prices_of(model, target.costs),
        most_cost - 1,
        lambda form: _refused(form, target) - known,
    )


def prices_of(model: ir.Model, costs: Costs | None) -> Callable[[ir.Model], float]:
    """Tell the cost of forms as a multiple of a model's; 1 for each without a rule for costs."""
    first = 0.0 if costs is None else cost_estimate.prices(model, costs, ())[0]
    if costs is None or not first:
        return lambda form: 1.0
    return lambda form: cost_estimate.prices(form, costs, ())[0] / first


def _refused(model: ir.Model, target: Target) -> set[str]:
    described = model.clone()
    normalize.name_nodes(described)
    shapes.infer_shapes(described)
    return {violation.node for violation in validate.validate(described, target, strict=False)}
