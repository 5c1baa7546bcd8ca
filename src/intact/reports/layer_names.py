"""One name for a layer throughout a report, and the errors that belong to it.

A layer is a node of the deployed model. Its error was measured in the quantized model, in which what the layer does may
be two nodes, such as a Conv and the Relu behind it: both find each other by the QuantizeLinear behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from intact.records import dataclass

Record = Mapping[str, Any]

# A tensor with at least this SQNR in dB does not show an error before it.
AGREED_DB = 30.0


@dataclass(frozen=True, slots=True)
class NamedLayers:
    """The layers and errors of a manifest, each under the name that the whole report has for it.

    `places` has the layer of each error, None where it has none, and `worst` the error of each layer that has one.
    `hidden` are large errors that no layer shows which reads their tensor.
    """

    layers: Sequence[Record]
    errors: Sequence[Record]
    places: Sequence[int | None]
    worst: Mapping[int, int]
    hidden: frozenset[int]

    def of_layer(self, layer: int) -> tuple[str, str]:
        """The name and the operator of a layer, with those of what was fused into it."""
        if layer not in self.worst:
            return self.layers[layer]["name"], self.layers[layer]["op"]
        return self.of_error(self.worst[layer])

    def of_error(self, error: int) -> tuple[str, str]:
        """The name and the operator of the layer that an error is of; of a tensor that no layer makes, its own."""
        record, place = self.errors[error], self.places[error]
        node, op = record["node"] or record["tensor"], record["op"]
        if place is None or not record["node"]:
            return node, op
        layer = self.layers[place]
        if layer["name"] in (node, record["quantizer"]):
            return node, layer["op"]
        return f"{layer['name']} + {node}", f"{layer['op']} + {op}"


def named_layers(manifest: Record) -> NamedLayers:
    """Find the layer of every error of a manifest."""
    layers, errors = manifest.get("layers") or [], manifest.get("errors") or []
    by_name = {layer["name"]: place for place, layer in enumerate(layers)}
    by_grid = {layer["quantizer"]: place for place, layer in enumerate(layers) if layer.get("quantizer")}
    places = [_place(error, by_grid, by_name) for error in errors]
    worst: dict[int, int] = {}
    for number in sorted(range(len(errors)), key=lambda number: -_decibels(errors[number]["own_db"])):
        if (place := places[number]) is not None:
            worst[place] = number
    return NamedLayers(layers, errors, places, worst, _hidden(layers, errors, places))


def _place(error: Record, by_grid: Mapping[str, int], by_name: Mapping[str, int]) -> int | None:
    # A kernel that computes in integers has the name of the QuantizeLinear that it took in.
    found = (by_grid.get(error["quantizer"]), by_name.get(error["quantizer"]), by_name.get(error["node"]))
    return next((place for place in found if place is not None), None)


def _hidden(layers: Sequence[Record], errors: Sequence[Record], places: Sequence[int | None]) -> frozenset[int]:
    """Large errors that no tensor shows which is computed from theirs, such as those in scores that a mask covers."""
    readers: dict[int, list[int]] = {}
    for reader, layer in enumerate(layers):
        for source in layer["reads"]:
            readers.setdefault(source, []).append(reader)
    so_far: dict[int, float] = {}
    for place, error in zip(places, errors, strict=True):
        if place is not None:
            so_far[place] = min(so_far.get(place, math.inf), _decibels(error["accumulated_db"]))
    large = [(number, place) for number, place in enumerate(places) if _decibels(errors[number]["own_db"]) < AGREED_DB]
    behind = {number: readers.get(place, []) for number, place in large if place is not None}
    return frozenset(
        number for number, found in behind.items() if found and all(so_far.get(one, 0.0) >= AGREED_DB for one in found)
    )


def _decibels(db: float | None) -> float:
    return math.inf if db is None else db
