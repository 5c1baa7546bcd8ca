"""Narrows a region where a device is wrong to a condition that can be read in a model, on all answers at hand.

The models on both sides of its edges are built again, and a quantity of the node is looked for that tells them apart:
a scale, a step in steps of the result, an end of a grid, sizes. A condition in which any right answer lies is none;
where no quantity alone is one, several of them together may be. Where nothing is, the region says why.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from intact.backends.probing.cases import Case, Chain, templates
from intact.backends.probing.models import PROBED, model_of
from intact.model import shapes
from intact.records import dataclass
from intact.targets.faults import FaultBox, FaultCondition, operands_of, operator_of
from intact.targets.operands import use_of
from intact.targets.quantities import RESULT, Quantity, grid_quantities, shape_quantities

OF_GRIDS = ("scale of", "grid of", "range of", "part of", "grid between")
# Kinds of quantities, the most telling first: for widths of grids, for absolute scales, and for where a grid ends.
_WIDTHS = ("grid of {} as a multiple", "steps of {} as", "scale of {}")
_SCALES = ("scale of {}",)
_ENDS = ("share below 0 of the grid of {}", "steps of {} as")
# A range of a scale or of steps that is narrower is one point, of which nothing follows for others.
_LEAST_SPAN = 1.01
# Sizes of so many kinds are any from the least to the greatest.
_MANY = 8
# Why a region has no condition.
OF_VALUES = "values beyond the grid"
IN_A_ROW = "which of the operators is wrong is not known"
ONE_POINT = "one grid was wrong, those around it are right or were not asked"
SAME_GRIDS = "others with such grids are right: only values differ"
SAME_SHAPES = "others with such shapes are right"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One operator of a question as it can be read in its model."""

    op: str
    operands: str
    grids: Mapping[str, Quantity]
    sizes: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class RegionEvidence:
    """The questions about a region: the factor, those that are wrong in it, its case as it stands, and right ones.

    `around` are wrong ones that a region of shapes has beside its own factor; `right` are all that is known to be
    right of the same operators.
    """

    factor: str
    asked: Case | Chain
    wrong: Sequence[Case | Chain]
    right: Sequence[Case | Chain]
    around: Sequence[Case | Chain] = ()


# The nodes of a question, in their order; None for a step that is only a grid.
Views = Callable[[Case | Chain], Sequence[NodeView | None]]


def views_of(asked: Case | Chain) -> list[NodeView | None]:
    """The operators of a question as a validator sees them."""
    model = model_of(asked)
    shapes.infer_shapes(model)
    steps = (asked,) if isinstance(asked, Case) else asked.steps
    names = [PROBED] if isinstance(asked, Case) else [f"{number}/{PROBED}" for number in range(len(steps))]
    nodes = {node.name: node for node in model.graph}
    return [_view(nodes[name]) if name in nodes else None for name in names]


def _view(node: object) -> NodeView:
    use = use_of(node)  # type: ignore[arg-type]
    return NodeView(operator_of(use), operands_of(use), grid_quantities(use), shape_quantities(use))


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The condition of a region, or without one the reason."""

    condition: FaultCondition | None
    unread: str = ""


def narrowed(evidence: RegionEvidence, views: Views = views_of) -> Narrowed:
    """The condition of a region, if something that can be read in a model tells it from what is right."""
    found = _narrowed(evidence, views)
    return Narrowed(found) if found is not None else Narrowed(None, _reason(evidence, views))


def _reason(evidence: RegionEvidence, views: Views) -> str:
    if not evidence.factor:
        return IN_A_ROW if isinstance(evidence.asked, Chain) else ONE_POINT
    if not evidence.factor.startswith(OF_GRIDS):
        return SAME_SHAPES
    if _leaves_grids(evidence):
        return OF_VALUES
    each = zip(*(views(asked) for asked in evidence.wrong), strict=True)
    spans = [_spanned([view for view in place if view is not None]) for place in each]
    return SAME_GRIDS if any(spans) else ONE_POINT


def _leaves_grids(evidence: RegionEvidence) -> bool:
    """True if values lie beyond the grid that they are read on."""
    steps = [one for asked in evidence.wrong for one in ((asked,) if isinstance(asked, Case) else asked.steps)]
    return any(operand.fill > 1 for step in steps for operand in step.template.operands)


def _narrowed(evidence: RegionEvidence, views: Views) -> FaultCondition | None:
    # Of operators in a row that are wrong as they stand it is not known what about them is, and what a value beyond a
    # grid does is no matter of the grid.
    if (not evidence.factor and isinstance(evidence.asked, Chain)) or _leaves_grids(evidence):
        return None
    steps = 1 if isinstance(evidence.asked, Case) else len(evidence.asked.steps)
    for place in reversed(range(steps)):
        boxes = _boxes(evidence, place, views)
        view = views(evidence.wrong[0])[place]
        if boxes is not None and view is not None:
            return _condition(evidence.asked, place, view, boxes)
    return None


def _condition(asked: Case | Chain, place: int, view: NodeView, boxes: Sequence[FaultBox]) -> FaultCondition:
    ops = [asked.template.op] if isinstance(asked, Case) else [step.template.op for step in asked.steps]
    rank = view.sizes.get("rank of input 0")
    fixed = int(rank) if isinstance(rank, float) and view.op in _of_several_ranks() else None
    around = (tuple(reversed(ops[:place])), tuple(ops[place + 1 :]))
    return FaultCondition(view.op, view.operands, tuple(boxes), *around, fixed)


@cache
def _of_several_ranks() -> frozenset[str]:
    """The operators that are asked about with inputs of several ranks, each by itself."""
    ranks: dict[str, set[int]] = {}
    for template in (one for one in templates() if one.operands and one.operands[0].role == "x"):
        ranks.setdefault(template.op, set()).add(len(template.operands[0].shape))
    return frozenset(op for op, found in ranks.items() if len(found) > 1)


def _boxes(evidence: RegionEvidence, place: int, views: Views) -> list[FaultBox] | None:
    """Boxes around what is wrong, in quantities of one of the operators, with nothing right in them."""
    every = [views(asked)[place] for asked in evidence.wrong]
    wrong = [view for view in every if view is not None]
    if len(wrong) < len(every) or len({(view.op, view.operands) for view in wrong}) > 1:
        return None
    alike = [view for asked in evidence.right if (view := _like(wrong[0], views(asked), place)) is not None]
    if evidence.factor and not evidence.factor.startswith(OF_GRIDS):
        around = [view for asked in evidence.around if (view := _like(wrong[0], views(asked), place)) is not None]
        return _of_sizes(wrong, around, alike)
    if not evidence.factor:
        return _as_it_stands(wrong, alike)
    return _of_grids(evidence.factor, wrong, alike)


def _like(wrong: NodeView, found: Sequence[NodeView | None], place: int) -> NodeView | None:
    view = found[place] if place < len(found) else None
    return view if view is not None and (view.op, view.operands) == (wrong.op, wrong.operands) else None


def _of_grids(factor: str, wrong: Sequence[NodeView], right: Sequence[NodeView]) -> list[FaultBox] | None:
    """One box in one quantity that is about the factor, or one for each end of a grid."""
    for name in _quantities(factor, wrong[0]):
        numbers = [value for view in wrong if isinstance(value := view.grids.get(name), float)]
        if len(numbers) < len(wrong):
            continue
        low, high = min(numbers), max(numbers)
        is_end = name.startswith("share")
        spans = [(low, high)] if is_end or high >= _LEAST_SPAN * low else []
        spans += [(number, number) for number in dict.fromkeys(numbers)] if is_end else []
        for group in (spans[:1], spans[1:]):
            boxes = [FaultBox({name: (_rounded(first), _rounded(last))}, {}) for first, last in group]
            if boxes and not any(box.holds(view.grids) for box in boxes for view in right):
                return boxes
    spanned = _spanned(wrong)
    for names in (*itertools.combinations(spanned, 2), tuple(spanned)):
        together = FaultBox({name: spanned[name] for name in names}, {})
        if names and not any(together.holds(view.grids) for view in right):
            return [together]
    return None


def _spanned(wrong: Sequence[NodeView]) -> dict[str, tuple[float, float]]:
    """The bounds of each quantity of grids that is not the same in all that is wrong."""
    found: dict[str, tuple[float, float]] = {}
    for name in (name for name in wrong[0].grids if not name.startswith("share")) if wrong else ():
        numbers = [value for view in wrong if isinstance(value := view.grids.get(name), float)]
        if len(numbers) == len(wrong) and max(numbers) >= _LEAST_SPAN * min(numbers):
            found[name] = _rounded(min(numbers)), _rounded(max(numbers))
    return found


def _quantities(factor: str, view: NodeView) -> Iterator[str]:
    """Quantities that a factor is about, the most telling first."""
    found = re.search(r"input (\d+)", factor)
    every = [RESULT, *(f"input {index}" for index in range(5))]
    places = [f"input {found[1]}"] if found else every[1:] if factor.startswith("grid between") else every
    grids = [name for name in view.grids if name.startswith("scale of input")]
    if factor.startswith(("range of", "grid of the result", "grid between")) and "times" not in factor:
        kinds = [(kind, places) for kind in _ENDS]
    elif factor.startswith("scale") and len(grids) > 1:
        # Beside others, what counts is how a grid compares with theirs.
        kinds = [("steps of {} as", [*places, *every]), *((kind, places) for kind in _SCALES)]
    else:
        kinds = [(kind, places) for kind in (_SCALES if factor.startswith("scale") else _WIDTHS)]
    for kind, here in kinds:
        for place in here:
            start = kind.format(place)
            yield from (name for name in view.grids if name.startswith(start))


def _as_it_stands(wrong: Sequence[NodeView], right: Sequence[NodeView]) -> list[FaultBox] | None:
    """Everything of these types; where others of them are right, a shape or an attribute that they do not have."""
    if not right:
        return [FaultBox({}, {})]
    (view,) = wrong
    for name, value in view.sizes.items():
        box = FaultBox({}, {name: (value,)})
        if not any(box.holds(other.sizes) for other in right):
            return [box]
    return None


def _of_sizes(
    wrong: Sequence[NodeView], around: Sequence[NodeView], right: Sequence[NodeView]
) -> list[FaultBox] | None:
    """One box around all wrong shapes, or a box around each where something right is in between."""
    for group in ([*wrong, *around], wrong):
        box = _hull(group)
        if not any(box.holds(view.sizes) for view in right):
            return [box]
    boxes = [_hull([view]) for view in wrong]
    return boxes if not any(box.holds(view.sizes) for box in boxes for view in right) else None


def _hull(views: Sequence[NodeView]) -> FaultBox:
    """The values that each quantity has in one of the shapes; one that is missing in any is left out."""
    names = [name for name in views[0].sizes if all(name in view.sizes for view in views)]
    values = {
        name: sorted({view.sizes[name] for view in views}, key=lambda v: (isinstance(v, str), v)) for name in names
    }
    many = {name: [v for v in found if isinstance(v, float)] for name, found in values.items() if len(found) >= _MANY}
    between = {name: (min(found), max(found)) for name, found in many.items() if found}
    return FaultBox(between, {name: tuple(found) for name, found in values.items() if name not in between})


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")
