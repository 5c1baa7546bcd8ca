"""The lines of Python that load and run what was built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from intact.backends import installed
from intact.numbers.integer_types import limits

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
    feeds = [f"    {json.dumps(port['name'])}: {_given(port)}" for port in ports["input"]]
    names = ", ".join(json.dumps(port["name"]) for port in ports["output"])
    run = f"outputs = {found.call.format(outputs=names)}"
    reals = [_real(place, port) for place, port in enumerate(ports["output"]) if port["scale"] is not None]
    grids = any(port["scale"] is not None for port in manifest["io"])
    imports = ["import numpy as np"] if grids else []
    return "\n".join([*imports, *found.loading, "inputs = {", *feeds, "}", run, *reals])


def _given(port: Mapping[str, Any]) -> str:
    """An input; one that the model takes as integers is quantized on the way."""
    dtype = NUMPY_TYPES.get(port["dtype"], port["dtype"])
    if port["scale"] is None:
        return f"...,  # {dtype} array{_shape(port)}"
    low, high = limits(port["dtype"])
    levels = f"np.rint(np.float32(...) / np.float32({port['scale']:.9g})) + {port['zero_point']}"
    return f"np.clip({levels}, {low}, {high}).astype(np.{dtype}),  # from a float32 array{_shape(port)}"


def _shape(port: Mapping[str, Any]) -> str:
    """The shape of an input, where it is known; a free dimension by its name."""
    shape = port.get("shape")
    return "" if shape is None else f" of shape [{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _real(place: int, port: Mapping[str, Any]) -> str:
    """The line that brings an output back to real values."""
    name = json.dumps(port["name"])
    point, scale = port["zero_point"], f"{port['scale']:.9g}"
    return f"real_{place} = (outputs[{place}].astype(np.float32) - {point}) * np.float32({scale})  # {name}"
