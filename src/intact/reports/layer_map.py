"""The map of the layers: a tile for each, in the order of the model, with its place, its precision and its grid."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intact.reports import error_bars
from intact.reports.figures import count
from intact.reports.layer_names import NamedLayers, named_layers

Record = Mapping[str, Any]

PITCH = 17
# Columns that make the map two and a half times as wide as it is high; on a phone none is too small for a finger.
_SHAPE = 2.5
_LEAST_COLUMNS = 20
# The most that a column takes of a wide screen, in CSS pixels.
_WIDEST = 30
_STYLES = {
    **{f"{sign}int8": "t8" for sign in ("u", "")},
    **{f"{sign}int16": "t16" for sign in ("u", "")},
    **{f"{sign}int{bits}": "t4" for sign in ("u", "") for bits in (2, 4)},
    "float16": "half",
    "bfloat16": "half",
}


def drawing(manifest: Record) -> dict[str, Any] | None:
    """Tiles, legends and measures of the map; None for a manifest without layers."""
    layers = manifest.get("layers") or []
    if not layers:
        return None
    columns = max(_LEAST_COLUMNS, math.ceil(math.sqrt(_SHAPE * len(layers))))
    places = _places(manifest["placement"])
    named = named_layers(manifest)
    tiles = [_tile(named, number, columns, places) | _error(named, number) for number in range(len(layers))]
    legends = {
        "place": _legend((tile["place"], tile["place_style"]) for tile in tiles),
        # Tiles that differ in their weights alone have one colour.
        "type": _legend((layer["activations"], tile["type_style"]) for layer, tile in zip(layers, tiles, strict=True)),
        "error": _legend((tile["error_band"], tile["error_style"]) for tile in tiles) if named.errors else [],
    }
    return {
        "count": count(len(tiles), "layer"),
        "columns": columns,
        "base": f"min(100%, {columns * _WIDEST}px)",
        "legends": legends,
        # One colour throughout tells nothing: the first view that has more is shown.
        "by": next((name for name, legend in legends.items() if len(legend) > 1), "place"),
        "width": columns * PITCH,
        "height": math.ceil(len(tiles) / columns) * PITCH,
        "tiles": tiles,
    }


def _places(placement: Record) -> dict[str, tuple[str, str, str]]:
    """The place of each node, the style of its tile, and the reason why it is not on the NPU."""
    on = {node["name"]: (placement.get("place", "NPU"), "npu", "") for node in placement["npu_nodes"]}
    off = {node["name"]: ("CPU", "off", node["reason"]) for node in placement["cpu_nodes"]}
    return on | off


def _tile(named: NamedLayers, number: int, columns: int, places: Mapping[str, tuple[str, str, str]]) -> dict[str, Any]:
    layer, (name, op) = named.layers[number], named.of_layer(number)
    # A compiler merges nodes: one that it does not list went into another.
    place, style, reason = places.get(layer["name"], ("part of another node", "unseen", ""))
    row, column = divmod(number, columns)
    grid = "" if layer["scale"] is None else f"real = (q − {layer['zero_point']}) × {layer['scale']:.6g}"
    return {
        "x": column * PITCH,
        "y": row * PITCH,
        "name": name,
        "op": op,
        "node": layer["name"] if layer["name"] not in name else "",
        "place": place,
        "place_style": style,
        "reason": reason,
        "type": _types(layer),
        "type_style": _STYLES.get(layer["activations"], "float"),
        "grid": grid,
        "reads": " ".join(map(str, layer["reads"])),
    }


def _error(named: NamedLayers, number: int) -> dict[str, str]:
    """The error that a layer adds, in words, with the style and the name of its size."""
    place = named.worst.get(number)
    style, name = error_bars.UNMEASURED if place is None else error_bars.band_of(named, place)
    words = "" if place is None else error_bars.shown(named.errors[place]["own_db"])
    return {"error": words, "error_style": style, "error_band": name}


def _types(layer: Record) -> str:
    return layer["activations"] if layer["weights"] is None else f"{layer['activations']} × {layer['weights']}"


def _legend(found: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Every name with its style and its number, the most frequent first."""
    counts: Sequence[tuple[tuple[str, str], int]] = Counter(found).most_common()
    return [{"name": name, "style": style, "count": number} for (name, style), number in counts]
