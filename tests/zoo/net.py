"""A float ONNX graph that grows node by node, with seeded weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Net:
    """Collects nodes, weights, inputs and outputs, and turns them into a checked model."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, shape: tuple[int, ...]) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"/{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def const(self, values: object, dtype: type = np.float32) -> str:
        """An initializer with these values."""
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """A node with one output, whose name it returns."""
        name = f"/{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_output_0"], name=name, **attributes))
        return f"{name}_output_0"

    def normal(self, shape: tuple[int, ...], scale: object = 1.0, mean: float = 0.0) -> str:
        """A weight drawn from a normal distribution."""
        return self.const(mean + self.rng.standard_normal(shape) * scale)

    def spread(self, channels: int, sigma: float = 0.35) -> np.ndarray:
        """One positive factor for each channel, as far apart as trained layers have them."""
        return np.exp(self.rng.normal(0.0, sigma, channels))

    def linear(self, x: str, width_in: int, width_out: int, gain: float = 1.0) -> str:
        """x @ W + b as torch exports nn.Linear on rank 3: MatMul, then Add with the bias first."""
        scale = gain * self.spread(width_out) / np.sqrt(width_in)
        product = self.op("MatMul", x, self.normal((width_in, width_out), scale))
        return self.op("Add", self.normal((width_out,), 0.1), product)

    def gemm(self, x: str, width_in: int, width_out: int) -> str:
        """nn.Linear on rank 2, as torch exports it: Gemm with a transposed weight."""
        scale = self.spread(width_out)[:, None] / np.sqrt(width_in)
        weight = self.normal((width_out, width_in), scale)
        return self.op("Gemm", x, weight, self.normal((width_out,), 0.1), alpha=1.0, beta=1.0, transB=1)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="zoo")
        onnx.checker.check_model(model, full_check=True)
        return model
