"""Moves scales between tensors and weights, so that the same function is computed on channels that quantize better."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.model import edit
from intact.model.copying import copied
from intact.quantization.calibration.observe import Rows, watch
from intact.quantization.improve.channel_ranges import Channels
from intact.quantization.improve.editor import Editor
from intact.quantization.improve.equalize import Equalization
from intact.quantization.improve.fold import Fold, find_fold
from intact.quantization.improve.scores import ScoreProduct
from intact.quantization.improve.site import Site, layers_of
from intact.quantization.improve.smooth import Smoothing
from intact.records import dataclass
from intact.results import QuantPlan

_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization")
_NOTES: dict[type, str] = {
    Smoothing: "smoothing: outlying channels of {} tensor{s} moved into weights",
    Equalization: "equalization: channels of {} tensor{s} evened out between the layers around them",
    ScoreProduct: "equalization: channels of {} product{s} of queries and keys evened out",
}


@dataclass(frozen=True, slots=True)
class Migrated:
    """A model on smoother channels, with each tensor scaled after the note about its kind.

    `changed` are the tensors with other values than before; a model that nothing was moved in is the one given.
    """

    model: ir.Model
    moved: tuple[tuple[str, str], ...] = ()
    changed: frozenset[str] = frozenset()

    def notes(self) -> list[str]:
        """One sentence for each kind of move, with how many there were."""
        kinds = [note for note, _ in self.moved]
        numbers = {note: kinds.count(note) for note in dict.fromkeys(kinds)}
        return [note.format(number, s="" if number == 1 else "s") for note, number in numbers.items()]


class Migration:
    """The places of a model where scales may be moved: they watch a run over the data, and then decide.

    `by_nodes` allows a Mul where scales do not fold: it pays where the Mul is computed in float.
    """

    def __init__(self, model: ir.Model, plan: QuantPlan, *, by_nodes: bool) -> None:
        self._given, self._result = model, copied(model)
        # A Mul between integers would round once more: it pays only behind a tensor that is computed in float.
        self._sites = list(_sites(self._result, plan, _produced(model, plan) if by_nodes else None))

    def watchers(self) -> dict[str, list[Channels]]:
        """The channels to watch of each tensor of the model."""
        found: dict[str, list[Channels]] = {}
        for name, seen in (pair for site in self._sites for pair in site.watched()):
            found.setdefault(name, []).append(seen)
        return found

    def apply(self) -> Migrated:
        """Move scales wherever that is worth it."""
        editor = Editor(self._result)
        applied = [(_NOTES[type(site)], site.apply(editor)) for site in self._sites]
        moved = tuple((note, tensor) for note, tensor in applied if tensor is not None)
        if not moved:
            return Migrated(self._given)
        edit.prune(self._result)
        return Migrated(self._result, moved, frozenset(editor.divided))


def migrate(model: ir.Model, plan: QuantPlan, rows: Rows, *, by_nodes: bool) -> Migrated:
    """A copy of `model` that computes the same on smoother channels, after a run over `rows`."""
    migration = Migration(model, plan, by_nodes=by_nodes)
    watchers = migration.watchers()
    if watchers:
        watch(model, watchers, rows)
    return migration.apply()


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
