"""Operands of quantized operators: integers with their grid, and why a kernel would not take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.matching.pattern import AnyOf, Output, Patterns, Var
from intact.model import query
from intact.numbers import integer_types
from intact.numbers.encoding import along

UINT8, INT8, INT32 = ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT32
MICROSOFT = "com.microsoft"


class Operand(NamedTuple):
    """Integers on a grid: real = (q - zero_point) * scale, with several scales along `axis` only."""

    q: ir.Value
    scale: ir.Value | None
    zero_point: ir.Value | None
    dtype: ir.DataType | None
    axis: int = 1
    block_size: int = 0

    @property
    def step(self) -> float | None:
        """The scale, where it is one constant."""
        number = query.scalar(self.scale)
        return None if number is None else float(number)

    @property
    def known_step(self) -> float:
        """The scale, which was found to be one constant before."""
        assert self.step is not None, f"{query.describe(self.q)} was taken for integers on a grid with one scale"
        return self.step

    @property
    def known_dtype(self) -> ir.DataType:
        """The type, which was found to be known before."""
        assert self.dtype is not None, f"the type of {query.describe(self.q)} was taken for known"
        return self.dtype

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer of the type."""
        return integer_types.limits(self.known_dtype.name.lower())

    @property
    def zero_level(self) -> np.ndarray:
        """The zero point in the type of the integers, where it is one constant."""
        return np.asarray(self.zero).astype(self.known_dtype.numpy())

    @property
    def zero(self) -> int:
        """The zero point, where it is one constant; 0 where it is absent."""
        return int(query.scalar(self.zero_point) or 0)

    @property
    def reach(self) -> int:
        """The greatest |q - zero_point| that the type allows, with any zero point where that is computed."""
        (least, greatest), zero = self.limits, query.scalar(self.zero_point)
        if self.zero_point is not None and zero is None:
            return greatest - least
        return max(greatest - int(zero or 0), int(zero or 0) - least)

    def scales(self) -> np.ndarray:
        """The constant scales as a flat float32 array."""
        array = query.known_constant(self.scale)
        return array.reshape(-1).astype(np.float32)

    def zeros(self) -> np.ndarray:
        """The constant zero points as a flat int64 array; 0 where there are none."""
        array = query.constant(self.zero_point)
        return np.zeros(1, np.int64) if array is None else array.reshape(-1).astype(np.int64)

    def centred(self) -> np.ndarray:
        """The constant integers minus their zero points."""
        integers = query.known_constant(self.q)
        return np.asarray(integers.astype(np.int64) - along(self.zeros(), integers.shape, self.axis))

    def grid(self, op: Builder) -> tuple[ir.Value, ir.Value]:
        """Scale and zero point as integer kernels want them: one number as a scalar, and a zero point in any case."""
        assert self.scale is not None, "grids are checked first"
        scale = as_scalar(op, self.scale, "scale")
        if self.zero_point is not None:
            return scale, as_scalar(op, self.zero_point, "zero_point")
        array = query.constant(scale)
        shape = () if array is None else array.shape
        return scale, op.constant(np.zeros(shape, self.known_dtype.numpy()), "zero_point")

    def triple(self, op: Builder) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Integers, scale and zero point, in the order of every QLinear operator."""
        return self.q, *self.grid(op)


def described(value: ir.Value, dtype: ir.DataType | None, shape: ir.Shape | None) -> ir.Value:
    """Give a new value the type and shape that other rules ask for: nothing infers them between two rules."""
    if dtype is not None:
        value.dtype = dtype
    value.shape = shape
    return value


def dequantized(op: Patterns, name: str) -> Output:
    """A DequantizeLinear, perhaps with other uses, that binds to `name`."""
    inputs = Var(f"{name}.q"), Var(f"{name}.scale"), Var(f"{name}.zero_point", optional=True)
    return op.DequantizeLinear(*inputs, _shared=True, _name=name)


def quantized(op: Patterns, value: Var | Output | AnyOf, name: str) -> Output:
    """A QuantizeLinear of `value` that binds to `name`."""
    return op.QuantizeLinear(value, Var(f"{name}.scale"), Var(f"{name}.zero_point", optional=True), _name=name)


def dq_operand(node: ir.Node) -> Operand:
    """The operand that a DequantizeLinear reads."""
    inputs = node.inputs
    q, zero_point = inputs[0], inputs[2] if len(inputs) > 2 else None
    assert q is not None, "DequantizeLinear has an input"
    return _operand(node, q, inputs[1], zero_point, zero_point.dtype if zero_point is not None else q.dtype)


def q_operand(node: ir.Node) -> Operand:
    """The operand that a QuantizeLinear writes."""
    inputs = node.inputs
    zero_point = inputs[2] if len(inputs) > 2 else None
    dtype = zero_point.dtype if zero_point is not None else _asked(node)
    return _operand(node, node.outputs[0], inputs[1], zero_point, dtype)


def _asked(node: ir.Node) -> ir.DataType:
    """The type that a QuantizeLinear without a zero point writes."""
    asked = query.int_(node, "output_dtype", 0)
    return ir.DataType(asked) if asked else UINT8


def _operand(
    node: ir.Node, q: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None, dtype: ir.DataType | None
) -> Operand:
    if not node.attributes.data:
        return Operand(q, scale, zero_point, dtype)
    return Operand(q, scale, zero_point, dtype, query.int_(node, "axis", 1), query.int_(node, "block_size", 0))


def input_operand(node: ir.Node, index: int, axis: int = 1) -> Operand:
    """Three inputs of an integer operator from `index` on: integers, scale, zero point."""
    q, scale, zero_point = (query.input_(node, index + offset) for offset in range(3))
    assert q is not None, f"{node.op_type} has an input {index}"
    return Operand(q, scale, zero_point, zero_point.dtype if zero_point is not None else q.dtype, axis)


def output_operand(node: ir.Node, index: int) -> Operand:
    """The output of an integer operator, whose scale and zero point are inputs from `index` on."""
    scale, zero_point = query.input_(node, index), query.input_(node, index + 1)
    output = node.outputs[0]
    return Operand(output, scale, zero_point, zero_point.dtype if zero_point is not None else output.dtype)


def as_scalar(op: Builder, value: ir.Value, hint: str) -> ir.Value:
    """A constant of one element as a scalar: some kernels refuse it in any other shape."""
    tensor = None if value.shape is not None and not len(value.shape) else query.constant_tensor(value)
    if tensor is None or tensor.size != 1 or not len(tensor.shape):
        return value
    return op.constant(tensor.numpy().reshape(()), hint)


def type_name(dtype: ir.DataType | None) -> str:
    """A type in words for a reason."""
    return "of unknown type" if dtype is None else dtype.name.lower()
