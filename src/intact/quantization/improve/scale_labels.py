"""Labels that assign a scale to every element of a tensor.

Labels are integers that broadcast against the tensor: each the index of a scale, and −1 where nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

UNTOUCHED = -1
Dim: TypeAlias = int | ir.SymbolicDim


def factors(labels: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The scale of each label."""
    return np.asarray(np.append(scales, 1.0)[labels])


def of_rank(labels: np.ndarray, rank: int) -> np.ndarray:
    """Labels without leading dimensions of one, as far as an operand of lower rank allows."""
    while labels.ndim > rank and labels.shape[0] == 1:
        labels = labels[0]
    return labels


def only(labels: np.ndarray, axis: int) -> np.ndarray | None:
    """The labels along one axis, or None where they differ along another."""
    return labels.reshape(-1) if labels.shape[axis] == labels.size else None


def fits(labels: np.ndarray, value: ir.Value) -> bool:
    """True if labels cover every element: in each dimension there is one for all, or one for each."""
    shape = value.shape
    if shape is None or len(shape) != labels.ndim:
        return False
    return all(size in (1, dim) for size, dim in zip(labels.shape, shape, strict=True))


def reshaped(labels: np.ndarray, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> np.ndarray | None:
    """Labels of what a Reshape reads, from those of what it writes: full where they differ, one for all elsewhere."""
    full: list[int] = []
    wanted: list[int] = []
    for old, new in _blocks(before, after):
        differ = labels.shape[len(full) : len(full) + len(new)] != (1,) * len(new)
        if differ and not all(isinstance(dim, int) for dim in (*old, *new)):
            return None
        full += [int(dim) if differ else 1 for dim in new]  # type: ignore[arg-type]
        wanted += [int(dim) if differ else 1 for dim in old]  # type: ignore[arg-type]
    fits = len(full) == len(after) and len(wanted) == len(before)
    return np.broadcast_to(labels, full).reshape(wanted) if fits else None


def _blocks(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Iterator[tuple[tuple[Dim, ...], tuple[Dim, ...]]]:
    """Runs of dimensions of two shapes that hold the same elements; none for what cannot be told."""
    while before and after and before[0] == after[0]:
        yield before[:1], after[:1]
        before, after = before[1:], after[1:]
    if not all(isinstance(dim, int) and dim > 0 for dim in (*before, *after)):
        return
    sizes = [np.cumprod([int(dim) for dim in shape], dtype=np.int64) for shape in (before, after)]  # type: ignore[arg-type]
    i = j = 0
    for size in np.intersect1d(np.append(sizes[0], 1), np.append(sizes[1], 1)):
        end, other_end = (int(np.searchsorted(ends, size, side="right")) for ends in sizes)
        yield before[i:end], after[j:other_end]
        i, j = end, other_end
