"""Moves scales between tensors and weights, so that the same function is computed on channels that quantize better."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.model import edit
from intact.quantization.calibration.observe import Rows, watch
from intact.quantization.improve.channel_ranges import Channels
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.equalize import Equalization
from intact.quantization.improve.fold import Fold, find_fold
from intact.quantization.improve.scores import ScoreProduct
from intact.quantization.improve.site import Site, layers_of
from intact.quantization.improve.smooth import Smoothing
from intact.results import QuantPlan

_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization")
_NOTES: dict[type, str] = {
    Smoothing: "smoothing: outlying channels of {} tensor{s} moved into weights",
    Equalization: "equalization: channels of {} tensor{s} evened out between the layers around them",
    ScoreProduct: "equalization: channels of {} product{s} of queries and keys evened out",
}


def migrate(
    model: ir.Model, plan: QuantPlan, rows: Rows, *, by_nodes: bool
) -> tuple[ir.Model, tuple[tuple[str, str], ...]]:
    """A copy of `model` that computes the same on smoother channels; each tensor scaled, after the note about its kind.

    `by_nodes` allows a Mul where scales do not fold: it pays where the Mul is computed in float.
    """
    result = model.clone()
    # A Mul between integers would round once more: it pays only behind a tensor that is computed in float.
    sites = list(_sites(result, plan, _produced(model, plan) if by_nodes else None))
    if not sites:
        return model, ()
    watchers: dict[str, list[Channels]] = {}
    for name, seen in (pair for site in sites for pair in site.watched()):
        watchers.setdefault(name, []).append(seen)
    watch(model, watchers, rows)
    editor = Editor(result)
    applied = [(_NOTES[type(site)], site.apply(editor)) for site in sites]
    moved = tuple((note, tensor) for note, tensor in applied if tensor is not None)
    edit.prune(result)
    return (result, moved) if moved else (model, ())


def describe(moved: tuple[tuple[str, str], ...]) -> list[str]:
    """One sentence for each kind of move, with how many there were."""
    kinds = [note for note, _ in moved]
    numbers = {note: kinds.count(note) for note in dict.fromkeys(kinds)}
    return [note.format(number, s="" if number == 1 else "s") for note, number in numbers.items()]


def _sites(model: ir.Model, plan: QuantPlan, on_grid: set[str] | None) -> Iterator[Site]:
    for layers in layers_of(model, plan):
        fold = find_fold(layers.source, layers.labels, layers.nodes)
        if fold is not None and _has_settled_ranges(fold, plan):
            continue
        if fold is not None and not _ends_at_normalization(fold):
            yield Equalization.of(layers, fold, plan)
        elif (smoothing := Smoothing.of(layers, fold, plan, on_grid)) is not None:
            yield smoothing
    products = [product for node in model.graph if (product := ScoreProduct.of(node, plan)) is not None]
    yield from (product for product in products if not any(_has_settled_ranges(fold, plan) for fold in product.folds))


def _has_settled_ranges(fold: Fold, plan: QuantPlan) -> bool:
    """True if the range of a tensor is given: it is that of the values as they are."""
    grids = {plan.tensors[value.name] for value, _ in fold.divided if value.name and value.name in plan.tensors}
    return any(plan.grids[grid].range is not None for grid in grids)


def _ends_at_normalization(fold: Fold) -> bool:
    return any(division.node.op_type in _NORMALIZATIONS for division in fold.divisions)


def _produced(model: ir.Model, plan: QuantPlan) -> set[str]:
    """The tensors that quantized nodes write as integers."""
    nodes = [node for node in model.graph if node.name in plan.nodes]
    return {value.name or "" for node in nodes for value in node.outputs if value.name in plan.tensors}
