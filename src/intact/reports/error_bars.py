"""Error by layer: a bar for every tensor on a grid, along the network, and the worst of them as a list."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from intact.reports.figures import MISSING, count, decibels, figure, share
from intact.reports.layer_names import NamedLayers, named_layers

Record = Mapping[str, Any]

WORST_SHOWN = 8
# Bars grow from no error, here, to an error as large as the signal, 0 dB.
NO_ERROR_DB = 70.0
# The least SQNR in dB of each band, with its style and name: 8 bits round a sound layer to 30 dB and more.
BANDS = ((40.0, "e1", "40 dB and more"), (30.0, "e2", "30 to 40 dB"), (20.0, "e3", "20 to 30 dB"))
WORST_BAND = ("e4", "below 20 dB")
UNMEASURED = ("e0", "not on a grid of its own")
HIDDEN = ("e5", "large, but the layers that read it do not show it")


def drawing(manifest: Record) -> dict[str, Any] | None:
    """Bars, the worst layers and the ticks; None for a manifest in which no layer was compared."""
    named = named_layers(manifest)
    if not named.errors:
        return None
    bars = [_bar(named, place) for place in range(len(named.errors))]
    worst = sorted(bars, key=lambda bar: (bar["hidden"], math.inf if bar["own_db"] is None else bar["own_db"]))
    return {
        "count": count(len(bars), "tensor"),
        "hidden": count(len(named.hidden), "tensor") if named.hidden else "",
        "bars": bars,
        "line": " ".join(f"{bar['place'] + 0.5},{100 - bar['accumulated_height']:.1f}" for bar in bars),
        "worst": worst[:WORST_SHOWN],
        "rest": worst[WORST_SHOWN:],
        "ticks": [(round(100 * db / NO_ERROR_DB, 1), f"{db} dB") for db in (0, 20, 40, 60)],
    }


def band(own_db: float | None) -> tuple[str, str]:
    """The style and the name of an error of this size."""
    found = (band for band in BANDS if own_db is None or own_db >= band[0])
    return next(((style, name) for _, style, name in found), WORST_BAND)


def band_of(named: NamedLayers, place: int) -> tuple[str, str]:
    """The style and the name of the band of the error at `place`."""
    return HIDDEN if place in named.hidden else band(named.errors[place]["own_db"])


def shown(db: float | None) -> str:
    """An SQNR of a layer, which may have no error."""
    return "no error" if db is None else f"{decibels(db)} dB"


def _bar(named: NamedLayers, place: int) -> dict[str, Any]:
    error, (name, op) = named.errors[place], named.of_error(place)
    return {
        "place": place,
        "name": name,
        "op": op,
        "hidden": place in named.hidden,
        "tensor": error["tensor"],
        "own_db": error["own_db"],
        "own": MISSING if error["own_db"] is None else decibels(error["own_db"]),
        "accumulated": MISSING if error["accumulated_db"] is None else decibels(error["accumulated_db"]),
        "height": _height(error["own_db"]),
        "accumulated_height": _height(error["accumulated_db"]),
        "style": band_of(named, place)[0],
        "grid": f"{error['dtype']} from {figure(error['low'])} to {figure(error['high'])}",
        "range": f"{error['low']:.7g} {error['high']:.7g}",
        "seen": "" if error["seen_low"] is None else f"{error['seen_low']:.7g} {error['seen_high']:.7g}",
        "cut_off": _cut_off(error["cut_off"]),
        "histogram": error["histogram"],
    }


def _cut_off(part: float | None) -> str:
    """The share of all values that a grid cuts off, with enough digits to tell it from none."""
    if part is None:
        return ""
    return "nothing" if part == 0 else share(part) if part >= 0.001 else f"{100 * part:.1g}\N{NO-BREAK SPACE}%"


def _height(db: float | None) -> float:
    """The height of a bar in per cent."""
    return 0.0 if db is None else round(100 * (1 - min(max(db, 0.0), NO_ERROR_DB) / NO_ERROR_DB), 1)
