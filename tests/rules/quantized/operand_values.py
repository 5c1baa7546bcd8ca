"""Operands without a model around them, for what rules ask about grids and weights, and a builder."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intact.matching.builder import Builder
from intact.rules.quantized.operand import Operand


def constant(array: Any) -> ir.Value:
    """A constant that is in no graph."""
    tensor = ir.tensor(np.asarray(array))
    value = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)]).outputs[0]
    value.shape, value.dtype = ir.Shape(tensor.shape), tensor.dtype
    return value


def computed(dtype: Any, shape: Any = None) -> ir.Value:
    """A value that nothing is known of but its type, and perhaps its shape."""
    known = None if shape is None else ir.Shape(shape)
    return ir.Value(name="computed", shape=known, type=ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype))))


def builder() -> Builder:
    """A builder in the middle of a rewrite, in an empty model."""
    graph = ir.Graph([], [], nodes=[ir.Node("", "Conv", [], name="conv")], opset_imports={"": 21})
    made = Builder(ir.Model(graph, ir_version=10))
    made.start(graph[0], list(graph))
    return made


def on_grid(q: Any, scale: Any, zero: Any = None, **places: int) -> Operand:
    """Integers on a grid; arrays are constants."""
    integers = q if isinstance(q, ir.Value) else constant(q)
    step = scale if isinstance(scale, ir.Value) else constant(np.asarray(scale, np.float32))
    point = zero if zero is None or isinstance(zero, ir.Value) else constant(zero)
    return Operand(integers, step, point, integers.dtype, **places)
