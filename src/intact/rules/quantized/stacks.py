"""Stacks of matrices for operators that take a matrix only: rows flattened to one, and the result as a stack again."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.model import query
from intact.rules.quantized import integer_layers
from intact.rules.quantized.operand import Operand

Shape: TypeAlias = tuple[int | None, ...]
"""Sizes of dimensions, None for one that is unknown."""


def sizes(value: ir.Value) -> Shape | None:
    """The shape of a value, if its rank is known."""
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def result_shape(a: ir.Value, b: Operand, last: ir.Node) -> Shape | None:
    """The shape of what `last` makes of a product of `a` with the matrix `b`: that of the product, if it is unknown."""
    known, left = sizes(last.outputs[0]), sizes(a)
    return known if known is not None or left is None else (*left[:-1], integer_layers.channel_count(b, -1))


def not_flat(a: ir.Value, b: Operand, shape: Shape | None, *, is_moved: bool = False) -> str | None:
    """Refuse rows of `a` that cannot be flattened to a matrix, or a product with `b` that is not of `shape`.

    At most one dimension may be unknown; a product that `is_moved` has been reshaped in between.
    """
    rank, columns = query.rank(a), integer_layers.channel_count(b, -1)
    if rank is None or rank < 2 or shape is None:
        return "the shapes of the input and of the result are not known to be matrices or stacks of them"
    if len(shape) == 2 and rank == 2 and not is_moved:
        return None
    if shape[-1] != columns:
        return f"the last dimension of the result is {shape[-1]}, not the {columns} columns of the product"
    return None if shape.count(None) <= 1 else f"{list(shape)} has several unknown dimensions"


def rows(op: Builder, a: ir.Value, b: Operand) -> ir.Value:
    """The rows of a stack as one matrix, for a product with the matrix `b`."""
    depth = query.known_shape(b.q)
    return op.Reshape(a, op.constant(np.array([-1, depth[0]], np.int64), "rows"))


def in_shape(op: Builder, product: ir.Value, shape: Shape) -> ir.Value:
    """A matrix in the shape of the stack that it is the product of."""
    wanted = np.array([-1 if size is None else size for size in shape], np.int64)
    return op.Reshape(product, op.constant(wanted, "shape"))
