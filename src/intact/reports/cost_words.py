"""The cost of a build for the head of its report: measured, told by the compiler, by the table's rule, or not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from intact.backends import installed
from intact.results import CostEstimate

Record = Mapping[str, Any]


class CostWords(NamedTuple):
    """A heading, a figure, what it is a share of, and where it comes from."""

    title: str
    value: str
    words: str
    source: str


def cost_words(manifest: Record) -> CostWords:
    """The best that is known of the cost of what is deployed; an estimate is called one."""
    latency = next((gate["value"] for gate in manifest["gates"] if gate["name"] == "max_latency_ratio"), None)
    if latency is not None:
        return CostWords("Latency", f"{latency:.2f}×", "that of the model as given", "measured on this machine")
    if manifest.get("cost") is not None:
        return _compiled(manifest["cost"])
    if manifest.get("estimate") is not None:
        found = CostEstimate(**manifest["estimate"])
        return _estimated(found, found.unit)
    if manifest.get("search") is not None:
        return _searched(manifest["search"])
    return _unknown(manifest["config"]["compile"]["device"])


def _compiled(cost: Record) -> CostWords:
    milliseconds = cost["milliseconds"]
    value = f"{cost['cycles']} cycles" if milliseconds is None else f"{milliseconds:.3g} ms"
    return CostWords("Estimated cost", value, "an inference", "by the vendor's compiler; nothing was measured")


def _estimated(found: CostEstimate, unit: str) -> CostWords:
    return CostWords("Estimated cost", f"{found.ratio:.2f}×", unit, f"{found.rule}; nothing was measured")


def _searched(search: Record) -> CostWords:
    """The estimate of a manifest from before they all had one."""
    *_, (unit, whole) = search["uniform"].items()
    found = CostEstimate(search["points"][search["chosen"]]["cost"] / whole, 0, search["cost_source"])
    return _estimated(found, f"the cost in {unit} throughout")


def _unknown(device: str) -> CostWords:
    """A device that is timed here, one that is not, or one that is not installed any more."""
    if installed.is_backend(device) and installed.find(device).untimed is None:
        return CostWords("Latency", "not measured", "intact perf times it beside the model as given", "")
    return CostWords("Estimated cost", "not known", "time it on the device itself", "")
