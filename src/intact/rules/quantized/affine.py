"""Constant arithmetic after a product, as one factor and one shift for each output channel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.model import query
from intact.model.node_encodings import constant_behind
from intact.records import dataclass

ARITHMETIC = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """factor · x + shift, in float64, with one number each for every output channel."""

    factor: np.ndarray
    shift: np.ndarray

    def then(self, other: Affine) -> Affine:
        """This map, and `other` of its result."""
        return Affine(self.factor * other.factor, self.shift * other.factor + other.shift)


def per_channel(
    value: ir.Value | None, array: np.ndarray | None, channels: int, rank: int, axis: int
) -> np.ndarray | str:
    """A constant that broadcasts against a tensor with channels along `axis`, as one number for each of them.

    Text says why it is no such constant.
    """
    if array is None:
        return f"{query.describe(value)} is computed, not constant"
    shape = (1,) * (rank - array.ndim) + array.shape
    if len(shape) != rank or shape[axis] not in (1, channels) or array.size != shape[axis]:
        return f"the constant has shape {list(array.shape)}, not one number for each of {channels} channels"
    return np.broadcast_to(array.reshape(-1), (channels,))


def of_node(node: ir.Node, channels: int, rank: int, axis: int = 1) -> Affine | str:
    """The map of an Add, Sub, Mul, Div or BatchNormalization on each channel; text says why it is no such map."""
    if node.op_type == "BatchNormalization":
        return _of_norm(node)
    found = [constant_behind(value) for value in node.inputs]
    index = 1 if found[1] is not None or node.op_type in ("Sub", "Div") else 0
    numbers = per_channel(node.inputs[index], found[index], channels, rank, axis)
    if isinstance(numbers, str):
        return numbers
    values = numbers.astype(np.float64)
    if node.op_type in ("Add", "Sub"):
        return _positive(Affine(np.ones(channels), values if node.op_type == "Add" else -values))
    with np.errstate(divide="ignore"):
        return _positive(Affine(values if node.op_type == "Mul" else 1 / values, np.zeros(channels)))


def run(node: ir.Node, x: np.ndarray, rank: int, axis: int = 1) -> np.ndarray:
    """The node on an array (channels, n), in the float32 arithmetic of its kernel."""
    if node.op_type == "BatchNormalization":
        gamma, beta, mean, var = (_column(value) for value in node.inputs[1:5])
        # The kernel folds the statistics into one multiplication and one addition.
        factor = gamma / np.sqrt(var + np.float32(query.float_(node, "epsilon", 1e-5)))
        return np.asarray(x * factor + (beta - mean * factor), np.float32)
    found = [constant_behind(value) for value in node.inputs]
    index = 1 if found[1] is not None or node.op_type in ("Sub", "Div") else 0
    numbers = per_channel(node.inputs[index], found[index], len(x), rank, axis)
    assert not isinstance(numbers, str), f"the constant was checked: {numbers}"
    compute = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[node.op_type]
    return np.asarray(compute(x, numbers.astype(np.float32)[:, None]), np.float32)


def _of_norm(node: ir.Node) -> Affine | str:
    if query.int_(node, "training_mode", 0) != 0:
        return "BatchNormalization is in training mode"
    arrays = [query.constant(value) for value in node.inputs[1:5]]
    if any(array is None for array in arrays):
        return "the statistics of the BatchNormalization are computed, not constant"
    gamma, beta, mean, var = (array.astype(np.float64) for array in arrays if array is not None)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = gamma / np.sqrt(var + query.float_(node, "epsilon", 1e-5))
        return _positive(Affine(factor, beta - mean * factor))


def _positive(affine: Affine) -> Affine | str:
    # Written so that NaN is refused as well.
    if not ((affine.factor > 0) & np.isfinite(affine.factor)).all():
        return f"a factor of {affine.factor.min():g} cannot go into a scale, which is positive"
    return affine if np.isfinite(affine.shift).all() else "the constant is not finite"


def _column(value: ir.Value | None) -> np.ndarray:
    array = query.known_constant(value)
    return array.astype(np.float32)[:, None]
