"""Suggest remedies for a gate that has failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from intact.results import Gate

_ACCURACY = ("min_sqnr", "min_cosine", "max_accuracy_drop")
# Finer precisions than each, the cheapest first.
_FINER = {"w4a16": "w8a16", "uint8": "w8a16", "int8": "w8a16", "w8a8": "w8a16", "w8a16": "int16"}


def with_remedy(
    gate: Gate, precision: str | None = None, *, calibration: str | None = None, takes: Collection[str] = ()
) -> Gate:
    """A gate that says what to try if it failed, for a build of this precision that was calibrated on this.

    `takes` are the precisions of the device; without them any may be proposed.
    """
    if gate.passed:
        return gate
    if gate.name in _ACCURACY:
        return replace(gate, fix="; ".join(_for_accuracy(gate, precision, calibration, takes)))
    if gate.name == "max_latency_ratio":
        return replace(gate, fix="intact perf on the original and this model names the operators to blame")
    if gate.name == "max_cycles":
        return replace(gate, fix="the manifest has the cycles of each layer: give the largest fewer bits or channels")
    return replace(gate, fix="change the nodes that are named: intact analyze says what the device takes")


def _for_accuracy(gate: Gate, precision: str | None, calibration: str | None, takes: Collection[str]) -> list[str]:
    tries = []
    if calibration == "synthetic":
        tries.append("calibrate on real inputs (--data)")
    if precision in _FINER and takes and _FINER[precision] not in takes:
        tries += ["--precision fp16"] if "fp16" in takes else []
    elif precision in _FINER:
        flag = f"--{gate.name.replace('_', '-')} {gate.limit:g}"
        tries.append(f"--precision {_FINER[precision]}, or --precision auto {flag} for the cheapest mix that passes")
    elif precision == "auto":
        tries.append("no mix that was built reaches it: lower the limit, or build with --precision fp16 or fp32")
    elif precision is None:
        tries.append("build with a finer --precision (w8a16, int16, or auto for the cheapest mix that passes)")
    if calibration not in (None, "none", "synthetic"):
        tries.append("calibrate on more rows, or with another --method")
    return [*tries, "intact debug on the original and the quantized model names the tensor where they part"]
