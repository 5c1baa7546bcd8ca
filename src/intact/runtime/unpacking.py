"""Outputs of any kind as arrays of numbers: sequences, maps and optionals taken apart, strings numbered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np


def arrays(outputs: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Every tensor in `outputs` under a name of its own: `y`, `y[0]`, `y[key]`; an optional without value is empty."""
    return {name: array for output, value in outputs.items() for name, array in _unpacked(output, value)}


def _unpacked(name: str, value: object) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _unpacked(f"{name}[{key}]", value[key])
    elif isinstance(value, list):
        yield f"{name}.length", np.array(len(value))
        for index, item in enumerate(value):
            yield from _unpacked(f"{name}[{index}]", item)
    elif value is None:
        yield name, np.empty(0, np.int64)
    else:
        yield name, np.asarray(value)


def numbered(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays as they are, or of strings the same arrays with a number for each string."""
    if one.dtype.kind not in "OUS":
        return one, other
    _, numbers = np.unique(np.concatenate([one.ravel(), other.ravel()]).astype(str), return_inverse=True)
    return numbers[: one.size].reshape(one.shape), numbers[one.size :].reshape(other.shape)
