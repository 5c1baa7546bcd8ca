"""Constant scales and shifts, moved into the weight and bias of the layer before them, or into one of their own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import Output, Patterns, Roots, Var
from intact.matching.rewriter import BOUNDED, Rule
from intact.model import query

_LINEAR = ("Conv", "ConvTranspose", "Gemm")
_RANKS_OF_CONV = (3, 4)
_MOVES = ("Reshape", "Flatten", "Transpose")


class FoldBatchNorm(Rule):
    """BN(W·x + b) = (f·W)·x + f·(b − mean) + beta with f = gamma / √(var + ε), up to float rounding."""

    exactness = BOUNDED

    def pattern(
        self, op: Patterns, x: Var, w: Var, gamma: Var, beta: Var, mean: Var, var: Var, b: Var | None = None
    ) -> Roots:
        statistics = [op.constant(item) for item in (gamma, beta, mean, var)]
        return op.BatchNormalization(_linear(op, x, w, b), *statistics, _name="norm")

    def check(self, linear: ir.Node, norm: ir.Node) -> str | None:
        if query.int_(norm, "training_mode", 0) != 0:
            return "BatchNormalization is in training mode"
        return _doubt(linear, *_statistics(norm))

    def rewrite(self, op: Builder, linear: ir.Node, norm: ir.Node) -> ir.Value:
        return _folded(op, linear, *_statistics(norm))


class FoldBatchNormIntoProduct(Rule):
    """BN(move(x·W + b)) = move(x·(f·W) + f·b + shift), where the move leaves columns of W to channels of the norm.

    With f and shift as in FoldBatchNorm, up to float rounding. It is how linear layers of networks for phones are
    written, whose rows are flattened for the norm, or become the last axis.
    """

    exactness = BOUNDED

    def pattern(self, op: Patterns, x: Var, w: Var, statistics: Var, rest: Var, b: Var | None = None) -> Roots:
        product = op.MatMul(x, op.constant(w))
        shifted = op.any_of(op.Add(product, op.constant(b)), product)
        moved = op.any_of(op.node(_MOVES, shifted, op.each(rest), _name="move"), shifted)
        return op.BatchNormalization(moved, op.each(statistics), _name="norm")

    def check(self, w: ir.Value, b: ir.Value | None, norm: ir.Node, move: ir.Node | None = None) -> str | None:
        if query.int_(norm, "training_mode", 0) != 0:
            return "BatchNormalization is in training mode"
        if not all(map(query.is_constant, norm.inputs[1:])):
            return "its statistics are computed"
        columns = (query.static_shape(w) or (0,))[-1]
        if query.rank(w) != 2 or not _are_columns(norm.inputs[0], columns, move):
            return f"the channels of the norm are not the columns of {query.describe(w)}"
        if b is not None and (query.static_shape(b) or (1,))[-1] not in (1, columns):
            return f"{query.describe(b)} is not one number for each column of {query.describe(w)}"
        tensor = query.constant_tensor(w)
        assert tensor is not None, "the pattern takes constants only"
        largest = max(np.abs(array).max(initial=0.0) for array in _normed(w, b, norm))
        # Written so that NaN is refused as well.
        return None if largest <= float(tensor.dtype.max) else f"the result would leave the range of {tensor.dtype}"

    def rewrite(
        self, op: Builder, x: ir.Value, w: ir.Value, b: ir.Value | None, norm: ir.Node, move: ir.Node | None = None
    ) -> ir.Value:
        dtype = query.known_constant(w).dtype
        weight, bias = (array.astype(dtype) for array in _normed(w, b, norm))
        shifted = op.Add(op.MatMul(x, op.constant(weight, "weight")), op.constant(bias, "bias"))
        return shifted if move is None else op.like(move, shifted, *move.inputs[1:])


class BatchNormToConv(Rule):
    """BN(x) = f·x + (beta − f·mean) in each channel, which is a convolution of each channel with one weight.

    A convolution has a scale for each channel where quantized statistics share one, and an NPU that takes both is
    better at the convolution. Up to float rounding.
    """

    exactness = BOUNDED
    creates = (("", "Conv"),)
    is_rare = True

    def pattern(self, op: Patterns, x: Var, gamma: Var, beta: Var, mean: Var, var: Var) -> Roots:
        return op.BatchNormalization(x, *(op.constant(item) for item in (gamma, beta, mean, var)), _name="norm")

    def check(self, x: ir.Value, norm: ir.Node) -> str | None:
        if query.int_(norm, "training_mode", 0) != 0:
            return "BatchNormalization is in training mode"
        rank = None if x.shape is None else len(x.shape)
        if rank not in _RANKS_OF_CONV:
            return f"its input has rank {rank}; a convolution takes {', '.join(map(str, _RANKS_OF_CONV))}"
        tensor = query.constant_tensor(norm.inputs[1])
        assert tensor is not None, "the pattern takes constants only"
        if tensor.dtype != x.dtype:
            return f"its statistics are {tensor.dtype}, its input {x.dtype}"
        largest = max(np.abs(array).max(initial=0.0) for array in _statistics(norm))
        return None if largest <= float(tensor.dtype.max) else f"the result would leave the range of {tensor.dtype}"

    def rewrite(self, op: Builder, x: ir.Value, norm: ir.Node) -> ir.Value:
        assert x.shape is not None, "checked"
        dtype = query.known_constant(norm.inputs[1]).dtype
        factor, shift = (array.astype(dtype) for array in _statistics(norm))
        weight = factor.reshape(-1, *(1,) * (len(x.shape) - 1))
        return op.Conv(x, op.constant(weight, "weight"), op.constant(shift, "bias"), group=len(factor))


class _FoldConstant(Rule):
    """A constant behind a linear operator; subclasses say what it does to each channel."""

    exactness = BOUNDED
    ops: ClassVar[tuple[str, ...]]

    def pattern(self, op: Patterns, x: Var, w: Var, c: Var, b: Var | None = None) -> Roots:
        return op.node(self.ops, _linear(op, x, w, b), op.constant(c), _name="root")

    def check(self, linear: ir.Node, c: ir.Value, root: ir.Node) -> str | None:
        return _varies(linear, c) or _doubt(linear, *self._affine(_per_channel(linear, c), root))

    def rewrite(self, op: Builder, linear: ir.Node, c: ir.Value, root: ir.Node) -> ir.Value:
        return _folded(op, linear, *self._affine(_per_channel(linear, c), root))

    def _affine(self, c: np.ndarray, root: ir.Node) -> tuple[np.ndarray, np.ndarray]:
        """The factor and the shift of each channel."""
        raise NotImplementedError(f"{type(self).__name__}._affine")


class FoldScale(_FoldConstant):
    """c·(W·x + b) = (c·W)·x + c·b, and the same for a division by c, up to float rounding."""

    ops = ("Mul", "Div")

    def _affine(self, c: np.ndarray, root: ir.Node) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(divide="ignore"):
            return (c if root.op_type == "Mul" else 1.0 / c), np.zeros(1)


class FoldShift(_FoldConstant):
    """(W·x + b) ± c = W·x + (b ± c), up to float rounding."""

    ops = ("Add", "Sub")

    def _affine(self, c: np.ndarray, root: ir.Node) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(1), c if root.op_type == "Add" else -c


def _are_columns(value: ir.Value | None, columns: int, move: ir.Node | None) -> bool:
    """True if the channels of a value, on its second axis, are the columns of a product that `move` leads to it."""
    rank = query.rank(value) or 0
    if move is not None and move.op_type == "Transpose":
        axes = query.ints(move, "perm", tuple(reversed(range(rank))))
        return rank > 1 and axes[1] == rank - 1
    return value is not None and value.shape is not None and rank == 2 and value.shape[1] == columns


def _normed(w: ir.Value, b: ir.Value | None, norm: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    """The weight and the bias of a product that does the work of a norm behind it."""
    factor, shift = _statistics(norm)
    with np.errstate(invalid="ignore", over="ignore"):
        return _float64(w) * factor, (0.0 if b is None else _float64(b)) * factor + shift


def _statistics(norm: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the shift of each channel of a BatchNormalization."""
    gamma, beta, mean, var = (_float64(value) for value in norm.inputs[1:5])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = gamma / np.sqrt(var + query.float_(norm, "epsilon", 1e-5))
        return factor, beta - mean * factor


def _linear(op: Patterns, x: Var, w: Var, b: Var | None) -> Output:
    return op.node(_LINEAR, x, op.constant(w), op.constant(b), _name="linear")


def _float64(value: ir.Value | None) -> np.ndarray:
    return query.known_constant(value).astype(np.float64)


def _channels(linear: ir.Node) -> int:
    shape = _float64(linear.inputs[1]).shape
    if linear.op_type == "Conv":
        return int(shape[0])
    if linear.op_type == "ConvTranspose":
        return int(shape[1]) * query.int_(linear, "group", 1)
    return int(shape[0 if query.int_(linear, "transB", 0) else 1])


def _shape_on_output(linear: ir.Node, c: ir.Value) -> tuple[int, ...]:
    """The shape of the constant with leading ones, as it broadcasts against the output."""
    shape = _float64(c).shape
    rank = 2 if linear.op_type == "Gemm" else _float64(linear.inputs[1]).ndim
    return (1,) * (rank - len(shape)) + shape


def _varies(linear: ir.Node, c: ir.Value) -> str | None:
    """Refuse a constant that is not one number for each output channel."""
    shape = _shape_on_output(linear, c)
    others = shape[:1] + shape[2:]
    rank = 2 if linear.op_type == "Gemm" else _float64(linear.inputs[1]).ndim
    if len(shape) == rank and shape[1] in (1, _channels(linear)) and all(size == 1 for size in others):
        return None
    return f"constant {c.name!r} of shape {list(_float64(c).shape)} is not one number for each channel"


def _per_channel(linear: ir.Node, c: ir.Value) -> np.ndarray:
    return np.broadcast_to(_float64(c).reshape(-1), (_channels(linear),))


def _doubt(linear: ir.Node, scale: np.ndarray, shift: np.ndarray) -> str | None:
    """Refuse a weight and bias that cannot take the affine map."""
    tensor = query.constant_tensor(linear.inputs[1])
    assert tensor is not None, "the pattern takes constants only"
    if not tensor.dtype.is_floating_point():
        return f"the weight is {tensor.dtype}, not float"
    bias = query.constant(query.input_(linear, 2))
    if bias is not None and (bias.ndim > 1 or bias.size not in (1, _channels(linear))):
        return f"the bias has shape {list(bias.shape)}, not one number for each channel"
    largest = max(np.abs(array).max(initial=0.0) for array in _weight_and_bias(linear, scale, shift))
    # Written so that NaN is refused as well.
    return None if largest <= float(tensor.dtype.max) else f"the result would leave the range of {tensor.dtype}"


def _weight_and_bias(linear: ir.Node, scale: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weight and bias that do the work of the linear op and of the affine map after it."""
    weight, channels = _float64(linear.inputs[1]), _channels(linear)
    b = query.input_(linear, 2)
    bias = np.zeros(1) if b is None else _float64(b) * query.float_(linear, "beta", 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = weight * _along_channels(linear, weight, np.broadcast_to(scale, (channels,)))
        return scaled, np.broadcast_to(bias * scale + shift, (channels,))


def _along_channels(linear: ir.Node, weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The scale in a shape that multiplies the output channels of the weight."""
    if linear.op_type == "Gemm":
        return scale[:, None] if query.int_(linear, "transB", 0) else scale[None, :]
    spatial = (1,) * (weight.ndim - 2)
    if linear.op_type == "Conv":
        return scale.reshape(-1, 1, *spatial)
    # ConvTranspose: (C, M/group, …); the rows of a group belong to that group's output channels.
    group = query.int_(linear, "group", 1)
    rows = np.repeat(scale.reshape(group, -1), weight.shape[0] // group, axis=0)
    return rows.reshape(*rows.shape, *spatial)


def _folded(op: Builder, linear: ir.Node, scale: np.ndarray, shift: np.ndarray) -> ir.Value:
    original = query.known_constant(linear.inputs[1])
    weight, bias = (array.astype(original.dtype) for array in _weight_and_bias(linear, scale, shift))
    constants = op.constant(weight, "weight"), op.constant(bias, "bias")
    return op.like(linear, linear.inputs[0], *constants, _dropped=("beta",))
