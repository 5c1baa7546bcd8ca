"""Settles the depth of attention masks from the scores that are seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.results import Range
from intact.rules.float import masks
from intact.runtime import ort_cpu

# Steps of a Softmax that are this fine come with 16-bit scores, which have steps to spare.
_FINE = 2.0**-12
# The share of their range that is left beyond the scores that were seen.
_HEADROOM = 0.125


@dataclass(frozen=True, slots=True)
class Settled:
    """A model whose masks are just deep enough, and the range of scores that matters before each Softmax."""

    model: ir.Model
    ranges: Mapping[str, Range]
    warnings: tuple[str, ...] = ()


def settle_masks(model: ir.Model, rows: Iterable[Mapping[str, np.ndarray]], softmax_step: float) -> Settled:
    """Choose the depth of every mask from the scores over `rows`; bounded, for masks of 0 and 1 and live rows."""
    sites = masks.mask_sites(model)
    depths = {name: site.depth for site in sites for name in site.scores}
    if not depths:
        return Settled(model, {})
    axes = {value.name: axis for value, axis in _softmaxes(model)}
    seen = {name: masks.Scores() for name in depths}
    session = ort_cpu.Session(model, optimize=ort_cpu.is_worth_optimizing(model), outputs=list(depths))
    for feeds in rows:
        for name, array in session.run(feeds).items():
            seen[name] |= masks.scores_of(array, depths[name], axes.get(name, -1))
    result = masks.choose_mask_depth(model, seen, softmax_step)
    return Settled(result, {name: _range(s, softmax_step) for name, s in seen.items()}, _dead(seen))


def _range(seen: masks.Scores, softmax_step: float) -> Range:
    """The scores that matter, with room for higher ones, which cost a whole row if they are cut off.

    A fine grid has room for lower ones, too.
    """
    found = masks.score_range(seen, softmax_step)
    room = (found.high - found.low) * _HEADROOM
    below, above = (room, room) if softmax_step < _FINE else (0.0, room / 2)
    return Range(found.low - below, found.high + above)


def _softmaxes(model: ir.Model) -> list[tuple[ir.Value, int]]:
    nodes = [node for node in model.graph if node.op_type == "Softmax" and node.inputs[0] is not None]
    return [(node.inputs[0], query.int_(node, "axis", -1)) for node in nodes]  # type: ignore[misc]


def _dead(seen: Mapping[str, masks.Scores]) -> tuple[str, ...]:
    dead = {name: scores.dead_rows for name, scores in seen.items() if scores.dead_rows}
    if not dead:
        return ()
    first = next(iter(dead))
    return (f"{first}: {dead[first]} rows have every key masked; what a mask of finite depth gives there differs",)
