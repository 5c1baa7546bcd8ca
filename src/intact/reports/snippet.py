"""The lines of Python that load and run what was built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from intact.backends import installed
from intact.numbers.integer_types import limits

NUMPY_TYPES = {"float": "float32", "double": "float64"}
ARRAYS = (
    "float32",
    "float64",
    "float16",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
"""Types of inputs that numpy has too."""


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
    shown = [_shown(place, port) for place, port in enumerate(ports["output"])]
    return "\n".join(["import numpy as np", *found.loading, "inputs = {", *feeds, "}", run, *reals, *shown])


def _given(port: Mapping[str, Any]) -> str:
    """An input to put one's own in place of; one that the model takes as integers is quantized on the way."""
    dtype = NUMPY_TYPES.get(port["dtype"], port["dtype"])
    if port["scale"] is None:
        return f"{_ones(port, dtype)},  # your {dtype} array{_free(port)}"
    low, high = limits(port["dtype"])
    levels = f"np.rint({_ones(port, 'float32')} / np.float32({port['scale']:.9g})) + {port['zero_point']}"
    return f"np.clip({levels}, {low}, {high}).astype(np.{dtype}),  # from your float32 array{_free(port)}"


def _ones(port: Mapping[str, Any], dtype: str) -> str:
    """An array of the shape of an input, of ones; dots where the shape, or the type in numpy, is not known."""
    shape = port.get("shape")
    if shape is None or dtype not in ARRAYS:
        return "..." if port["scale"] is None else "np.float32(...)"
    return f'np.ones([{", ".join(str(dim) if isinstance(dim, int) else "1" for dim in shape)}], "{dtype}")'


def _free(port: Mapping[str, Any]) -> str:
    """The dimensions of an input that may have any size, by their names and places."""
    free = [(place, dim) for place, dim in enumerate(port.get("shape") or []) if not isinstance(dim, int)]
    return "".join(f", axis {place} of any size{'' if dim is None else f' ({dim})'}" for place, dim in free)


def _shown(place: int, port: Mapping[str, Any]) -> str:
    """The line that prints the shape of an output and its first values."""
    value = f"outputs[{place}]" if port["scale"] is None else f"real_{place}"
    return f"print({json.dumps(port['name'])}, {value}.shape, {value}.ravel()[:8])"


def _real(place: int, port: Mapping[str, Any]) -> str:
    """The line that brings an output back to real values."""
    name = json.dumps(port["name"])
    point, scale = port["zero_point"], f"{port['scale']:.9g}"
    return f"real_{place} = (outputs[{place}].astype(np.float32) - {point}) * np.float32({scale})  # {name}"
