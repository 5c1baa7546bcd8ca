"""Conv, Gemm and MatMul seen alike: rows of weights times columns of inputs, in groups.

Output channel n of group g is the product of `matrix(weight)[g, n]` with a column of inputs; `columns` takes those
columns out of an activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.numbers import integer
from intact.records import dataclass


class Linear(Protocol):
    """A linear operator with a constant weight."""

    def matrix(self, weight: np.ndarray) -> np.ndarray:
        """The weight as [groups, outputs per group, inputs per group]."""

    def weight(self, matrix: np.ndarray) -> np.ndarray:
        """The inverse of `matrix`: rows of weights in the shape that the operator stores."""

    def columns(self, x: np.ndarray, most: int) -> np.ndarray:
        """At most `most` columns of inputs, evenly spread, as [groups, columns, inputs per group]."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A Gemm or MatMul whose second operand is a constant matrix."""

    transposed: bool
    input_transposed: bool

    def matrix(self, weight: np.ndarray) -> np.ndarray:
        rows: np.ndarray = weight if self.transposed else weight.T
        return rows[None]

    def weight(self, matrix: np.ndarray) -> np.ndarray:
        rows: np.ndarray = matrix[0] if self.transposed else matrix[0].T
        return rows

    def columns(self, x: np.ndarray, most: int) -> np.ndarray:
        rows: np.ndarray = x.T if self.input_transposed else x.reshape(-1, x.shape[-1])
        return rows[None, spread(len(rows), most)]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A Conv with a constant kernel, of any rank; its columns are the patches under the kernel."""

    shape: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str

    def matrix(self, weight: np.ndarray) -> np.ndarray:
        return weight.reshape(self.groups, self.shape[0] // self.groups, -1)

    def weight(self, matrix: np.ndarray) -> np.ndarray:
        return matrix.reshape(self.shape)

    def columns(self, x: np.ndarray, most: int) -> np.ndarray:
        kernel = self.shape[2:]
        around = integer.paddings(x.shape[2:], kernel, self.strides, self.dilations, self.pads, self.auto_pad)
        axes = zip(x.shape[2:], kernel, self.strides, self.dilations, around, strict=True)
        places = [(size + sum(pads) - gap * (taps - 1) - 1) // step + 1 for size, taps, step, gap, pads in axes]
        chosen = np.unravel_index(spread(x.shape[0] * int(np.prod(places)), most), (x.shape[0], *places))
        patches = self._patches(x, chosen, [before for before, _ in around])
        # [channels, columns, taps] as [groups, columns, channels of the group and taps].
        grouped = patches.reshape(self.groups, -1, *patches.shape[1:]).swapaxes(1, 2)
        return grouped.reshape(self.groups, patches.shape[1], -1)

    def _patches(self, x: np.ndarray, chosen: Sequence[np.ndarray], before: Sequence[int]) -> np.ndarray:
        """The patches at chosen places, as [channels, places, taps]; nothing but what they hold is read.

        Images with zeros around them, and windows over those, would be made for a few patches of each.
        """
        count = len(chosen[0])
        offset, inside = np.zeros((count, 1), np.intp), np.ones((count, 1), bool)
        for axis, place in enumerate(chosen[1:]):
            size, taps = x.shape[2 + axis], np.arange(self.shape[2 + axis]) * self.dilations[axis]
            at = (place * self.strides[axis] - before[axis])[:, None] + taps
            offset = (offset[:, :, None] * size + at[:, None]).reshape(count, -1)
            inside = (inside[:, :, None] & ((at >= 0) & (at < size))[:, None]).reshape(count, -1)
        images = x.reshape(*x.shape[:2], -1)
        starts = np.searchsorted(chosen[0], np.arange(len(x) + 1))
        parts = [
            np.take(image, offset[start:stop], axis=1, mode="clip")
            for image, start, stop in zip(images, starts, starts[1:], strict=False)
        ]
        patches = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if not inside.all():
            patches[:, ~inside] = 0
        return patches


def linear(node: ir.Node, weight: np.ndarray, index: int) -> Linear | None:
    """The linear view of a node whose input `index` is `weight`, or None if it has none."""
    if node.domain or index != 1:
        return None
    if node.op_type == "MatMul" and weight.ndim == 2:
        return MatrixProduct(False, False)
    if node.op_type == "Gemm" and query.float_(node, "alpha", 1.0) == 1.0:
        return MatrixProduct(bool(query.int_(node, "transB", 0)), bool(query.int_(node, "transA", 0)))
    if node.op_type == "Conv":
        ones = (1,) * (weight.ndim - 2)
        return Convolution(
            shape=weight.shape,
            groups=query.int_(node, "group", 1),
            strides=query.ints(node, "strides", ones),
            dilations=query.ints(node, "dilations", ones),
            pads=query.ints(node, "pads", ones and (0,) * (2 * len(ones))),
            auto_pad=query.string(node, "auto_pad", "NOTSET"),
        )
    return None


def spread(count: int, most: int) -> np.ndarray:
    """Up to `most` of the indices below `count`, at equal distances: the same ones every time."""
    if count <= most:
        return np.arange(count)
    return (np.arange(most) * count // most).astype(np.intp)


@dataclass(slots=True)
class Moments:
    """Second moments of input columns, in blocks of at most `block` inputs, and their sum.

    Memory depends on the layer alone, never on the number of rows seen.
    """

    linear: Linear
    groups: int
    inputs: int
    most: int
    block: int
    rows: int
    total: np.ndarray
    products: list[np.ndarray]

    @classmethod
    def empty(cls, linear: Linear, matrix: np.ndarray, *, most: int, block: int) -> Moments:
        """Nothing seen yet, for a layer whose weights are `matrix`."""
        groups, _, inputs = matrix.shape
        pieces = [min(block, inputs - start) for start in range(0, inputs, block)]
        products = [np.zeros((groups, size, size), np.float32) for size in pieces]
        return cls(linear, groups, inputs, most, block, 0, np.zeros((groups, inputs)), products)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """The columns of one row that are looked at: those with NaN or infinity are not."""
        columns = self.linear.columns(np.asarray(x, np.float32), self.most)
        # One pass over them tells in nearly all cases that there are none.
        if np.isfinite(columns.sum(dtype=np.float64)):
            return columns
        return columns[:, np.isfinite(columns).all(axis=(0, 2))]

    def add(self, x: np.ndarray) -> None:
        """Take in one row."""
        self.add_columns(self.columns(x))

    def add_columns(self, columns: np.ndarray) -> None:
        """Take in columns of the layer's inputs."""
        self.rows += columns.shape[1]
        self.total += np.ones(columns.shape[1], np.float32) @ columns
        for index, product in enumerate(self.products):
            part = np.ascontiguousarray(columns[:, :, index * self.block : (index + 1) * self.block])
            # A copy, or numpy computes half of the product and copies it to the other half, which takes longer.
            product += np.matmul(part.transpose(0, 2, 1).copy(), part)

    def fresh(self) -> Moments:
        """The same columns, of which nothing is seen yet."""
        empty = [np.zeros_like(product) for product in self.products]
        return replace(self, rows=0, total=np.zeros_like(self.total), products=empty)

    def join(self, later: Moments) -> None:
        """Take in what another has seen of the same columns."""
        self.rows += later.rows
        self.total += later.total
        for mine, theirs in zip(self.products, later.products, strict=True):
            mine += theirs

    @property
    def mean(self) -> np.ndarray:
        """The mean column of each group."""
        return self.total / max(self.rows, 1)

    @property
    def nbytes(self) -> int:
        return sum(product.nbytes for product in self.products)
