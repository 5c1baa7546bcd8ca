"""Builds small quantized models, one call a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from intact.model import normalize

INT4, UINT4 = TensorProto.INT4, TensorProto.UINT4


@dataclass
class Graph:
    """A graph in the making; every method returns the name of a value."""

    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)

    def input(self, shape: Sequence[int], name: str = "x") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, array: Any, kind: int | None = None) -> str:
        name, array = f"c{len(self.constants)}", np.asarray(array)
        if kind is None:
            self.constants.append(numpy_helper.from_array(array, name))
        else:
            self.constants.append(helper.make_tensor(name, kind, array.shape, array.astype(int).reshape(-1).tolist()))
        return name

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, domain=domain, **attributes))
        return f"{name}_out"

    def q(self, x: str, scale: Any, zero: Any, kind: int | None = None, **attributes: Any) -> str:
        return self.op("QuantizeLinear", x, *self._grid(scale, zero, kind), **attributes)

    def dq(self, x: str, scale: Any, zero: Any, kind: int | None = None, **attributes: Any) -> str:
        return self.op("DequantizeLinear", x, *self._grid(scale, zero, kind), **attributes)

    def qdq(self, x: str, scale: Any, zero: Any, kind: int | None = None, **attributes: Any) -> str:
        return self.dq(self.q(x, scale, zero, kind, **attributes), scale, zero, kind, **attributes)

    def model(self, *outputs: str) -> ir.Model:
        values = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "main", self.inputs, values, self.constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        inferred = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))
        return normalize.normalize(ir.from_proto(inferred))

    def _grid(self, scale: Any, zero: Any, kind: int | None) -> tuple[str, str]:
        return self.constant(np.asarray(scale, np.float32)), self.constant(zero, kind)
