"""Masks of attention, and the least depth below the scores at which a masked key vanishes.

Rules write a mask as `indicator · constant`, added to the scores before a Softmax, and mark the Mul; or the Add,
where the mask as a whole is constant. The constant starts at `FLOAT_DEPTH`, which float arithmetic turns into a
weight of 0. A grid has to cover what is added, so that a quantizer wants it just low enough. With n keys in a row,
scores up to `high`, rows whose best live score is at least `lowest_peak`, and a softmax grid of step t, all masked
keys of a row together weigh at most n · exp(high − C − lowest_peak), which is half a step for

    C = high − lowest_peak + margin,  margin = ln(2n / t)

For the same reason a grid of the scores need not reach below lowest_peak − margin. On a trained encoder at 8 bits that
is worth more than the best C without it: 29.4 dB against 27.1, and then no C that is deep enough costs anything.

The claim is for masks of 0 and 1, and rows with a live key. Rows with none differ by any finite C; they are counted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.model import edit, query
from intact.model.copying import copied
from intact.results import Range

MARK = "intact.mask"
"""Metadata key of a node that computes a mask: `INDICATOR` or `BIAS`."""

INDICATOR = "indicator"
"""The node's values are 0 and 1."""

BIAS = "bias"
"""The node is a Mul by a depth, or an Add of a constant mask, that puts a masked key below the scores."""

FLOAT_DEPTH = 1e4
"""Deep enough for any score in float32, and still a number in float16."""

LEAST_DEPTH = 1e3
"""A constant at least this deep is meant to make a weight vanish."""

MOVES = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Expand", "Transpose", "Slice", "Flatten", "Identity", "Tile"})
"""Operators that only move or repeat the elements of their first input."""

# Steps between a mask and its Softmax; exporters need no more than about five.
_FARTHEST = 12


@dataclass(frozen=True, slots=True)
class MaskSite:
    """A node whose constant sets the depth of a mask, and the inputs of the Softmax nodes that it reaches."""

    node: str
    depth: float
    scores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """The statistics of a masked Softmax's input.

    `high` is the highest score of any key, masked or not. The peak of a row is its highest live score; a row
    without a live key is dead, and has none. `keys` is the length of a row.
    """

    high: float = -math.inf
    lowest_peak: float = math.inf
    highest_peak: float = -math.inf
    keys: int = 1
    dead_rows: int = 0

    def __or__(self, other: Scores) -> Scores:
        return Scores(
            max(self.high, other.high),
            min(self.lowest_peak, other.lowest_peak),
            max(self.highest_peak, other.highest_peak),
            max(self.keys, other.keys),
            self.dead_rows + other.dead_rows,
        )


def scores_of(array: np.ndarray, depth: float, axis: int = -1) -> Scores:
    """Measure one tensor of masked scores, where a masked key lies `depth` below its score."""
    peaks = array.max(axis)
    live = peaks[peaks >= -depth / 2]
    high = np.where(array < -depth / 2, array.astype(np.float64) + depth, array).max(initial=-math.inf)
    return Scores(
        high=float(high),
        lowest_peak=float(live.min(initial=math.inf)),
        highest_peak=float(live.max(initial=-math.inf)),
        keys=array.shape[axis],
        dead_rows=peaks.size - live.size,
    )


def margin(seen: Scores, softmax_step: float) -> float:
    """The distance below the peak of a row at which all other keys weigh half a step of the softmax grid at most."""
    return math.log(2 * seen.keys / softmax_step)


def mask_depth(seen: Scores, softmax_step: float) -> float:
    """The least whole depth at which all masked keys of a row together fall below half a step of the softmax grid."""
    if not math.isfinite(seen.high - seen.lowest_peak):
        return FLOAT_DEPTH
    return float(math.ceil(seen.high - seen.lowest_peak + margin(seen, softmax_step)))


def score_range(seen: Scores, softmax_step: float) -> Range:
    """The scores that a softmax grid of this step can tell apart, from the lowest that matters to the highest."""
    return Range(seen.lowest_peak - margin(seen, softmax_step), seen.highest_peak)


def choose_mask_depth(model: ir.Model, seen: Mapping[str, Scores], softmax_step: float) -> ir.Model:
    """Return a copy of `model` whose masks are just deep enough for what was seen at the Softmax inputs."""
    result = copied(model)
    names = edit.Names(result)
    for node, site in list(_sites(result)):
        together = functools.reduce(Scores.__or__, (seen[name] for name in site.scores))
        _set_depth(node, min(site.depth, mask_depth(together, softmax_step)), names)
    edit.prune(result)
    return result


def mask_sites(model: ir.Model) -> tuple[MaskSite, ...]:
    """Every node of the model whose constant sets the depth of a mask, in graph order."""
    return tuple(site for _, site in _sites(model))


def _sites(model: ir.Model) -> Iterator[tuple[ir.Node, MaskSite]]:
    for node in query.all_nodes(model):
        index = _depth_input(node)
        scores = None if index is None else softmax_inputs(node.outputs[0])
        if index is not None and scores is not None:
            constant = query.known_constant(node.inputs[index])
            depth = float(abs(constant).max() if node.op_type == "Mul" else -constant.min())
            yield node, MaskSite(node.name or "", depth, tuple(value.name or "" for value in scores))


def _set_depth(node: ir.Node, depth: float, names: edit.Names) -> None:
    index = _depth_input(node)
    assert index is not None, f"{node.name!r} is no site of a mask"
    assert node.graph is not None, f"{node.name!r} is in no graph"
    array = query.known_constant(node.inputs[index])
    # A Mul is by ±C; a constant mask holds zeros and biases, which stay, and −C.
    bounded = np.clip(array, -depth, depth if node.op_type == "Mul" else None).astype(array.dtype)
    node.replace_input_with(index, edit.add_initializer(node.graph, bounded, names.take(f"{node.name}/mask_depth")))


def _depth_input(node: ir.Node) -> int | None:
    """The input that sets the depth of a mask: the constant of a marked Mul or Add."""
    if node.domain or node.op_type not in ("Mul", "Add") or node.metadata_props.get(MARK) != BIAS:
        return None
    return next((index for index, value in enumerate(node.inputs) if query.is_constant(value)), None)


def is_constant_mask(value: ir.Value | None) -> bool:
    """True if the value is a float constant whose lowest elements are meant to make weights vanish."""
    array = query.constant(value)
    return array is not None and array.size > 1 and array.dtype.kind == "f" and bool(array.min() <= -LEAST_DEPTH)


def masked(model: ir.Model) -> set[str]:
    """The tensors between the nodes that set the depths of masks and the Softmax nodes behind them, ends included."""
    found: set[str] = set()
    left = [value for node, _ in _sites(model) for value in node.outputs]
    while left:
        value = left.pop()
        if value.name not in found:
            found.add(value.name or "")
            left += [after for after in _one_step([value], {}) if after is not None]
    return found


def softmax_inputs(value: ir.Value) -> tuple[ir.Value, ...] | None:
    """The inputs of the Softmax nodes that a term of their sum reaches, or None where it has any other effect."""
    found: dict[ir.Value, None] = {}
    level: Iterable[ir.Value] = [value]
    for _ in range(_FARTHEST):
        reached = list(_one_step(level, found))
        if None in reached:
            return None
        level = dict.fromkeys(item for item in reached if item is not None)
        if not level:
            return tuple(found) or None
    return None


def _one_step(level: Iterable[ir.Value], found: dict[ir.Value, None]) -> Iterator[ir.Value | None]:
    """The values one node further on; None for a use that is no sum, move or Softmax."""
    for value in level:
        if value.is_graph_output():
            yield None
        for node, index in value.uses():
            if node.domain == "" and node.op_type == "Softmax":
                found[value] = None
            elif node.domain == "" and (node.op_type == "Add" or (node.op_type in MOVES and index == 0)):
                yield node.outputs[0]
            else:
                yield None
