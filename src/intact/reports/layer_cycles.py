"""Layers of a compiled model by the cycles that its compiler estimates for them, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intact.reports.figures import MISSING, share, size

Record = Mapping[str, Any]

# Layers that are listed before the rest is folded away.
_SHOWN = 8


def layer_cycles(manifest: Record) -> dict[str, Any] | None:
    """Rows of the layers that take the most cycles, rows of the others, and the sums; None without an estimate."""
    layers = [layer for layer in manifest["placement"].get("layers", ()) if layer.get("cycles") is not None]
    if not layers or manifest.get("cost") is None:
        return None
    total = sum(layer["cycles"] for layer in layers)
    rows = [_row(layer, total) for layer in sorted(layers, key=lambda layer: -layer["cycles"])]
    return {"shown": rows[:_SHOWN], "rest": rows[_SHOWN:], "sums": _sums(manifest["cost"])}


def _row(layer: Record, total: int) -> dict[str, str]:
    moved = layer.get("moved_bytes")
    return {
        "nodes": " + ".join(layer["nodes"]) or MISSING,
        "kind": layer["kind"],
        "precision": layer["precision"],
        "place": layer["kernel"],
        "cycles": str(layer["cycles"]),
        "share": share(layer["cycles"] / total) if total else MISSING,
        "moved": MISSING if moved is None else size(moved),
    }


def _sums(cost: Record) -> str:
    """The whole model in one line."""
    time = cost.get("milliseconds")
    words = [f"{cost['cycles']} cycles", *([f"about {time:.3g} ms at the chip's clock"] if time is not None else [])]
    sizes = {"weights": cost.get("weight_bytes"), "activations": cost.get("activation_bytes")}
    return ", ".join([*words, *(f"{size(number)} of {what}" for what, number in sizes.items() if number is not None)])
