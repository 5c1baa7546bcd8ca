"""The lines of Python that load and run what was built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from intact.backends import installed

NUMPY_TYPES = {"float": "float32", "double": "float64"}


def lines(manifest: Mapping[str, Any]) -> str | None:
    """Python that runs the deployable model, or None for a device whose runtime is not known."""
    compiled = manifest["config"]["compile"]
    if not installed.is_backend(compiled["device"]):
        return None
    whole = not manifest["placement"]["cpu_nodes"]
    found = installed.find(compiled["device"]).snippet(compiled["ep_options"], whole=whole)
    if found is None:
        return None
    ports = {d: [p for p in manifest["io"] if p["direction"] == d] for d in ("input", "output")}
    feeds = [f"    {json.dumps(port['name'])}: ...,  # {_array(port)}" for port in ports["input"]]
    names = ", ".join(json.dumps(port["name"]) for port in ports["output"])
    return "\n".join([*found.loading, "inputs = {", *feeds, "}", f"outputs = {found.call.format(outputs=names)}"])


def _array(port: Mapping[str, Any]) -> str:
    dtype = NUMPY_TYPES.get(port["dtype"], port["dtype"])
    if port["scale"] is None:
        return f"{dtype} array"
    return f"{dtype} array, real = (q - {port['zero_point']}) * {port['scale']:.9g}"
