"""Small quantized models, for a compiler to take or to refuse."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 8
SIDE = 8


class Net:
    """Collects nodes; every activation gets a Q/DQ pair."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"the_{output}", **attributes))
        return output

    def quantize(self, x: str, scale: float = 0.05, zero: int = 128, dtype: type = np.uint8) -> str:
        grid = [self.constant(f"{x}.s", np.float32(scale)), self.constant(f"{x}.z", dtype(zero))]
        return self.op("QuantizeLinear", [x, *grid], f"{x}.q")

    def qdq(self, x: str, scale: float = 0.05, zero: int = 128, dtype: type = np.uint8) -> str:
        quantized = self.quantize(x, scale, zero, dtype)
        return self.op("DequantizeLinear", [quantized, f"{x}.s", f"{x}.z"], f"{x}.d")

    def weight(self, name: str, value: np.ndarray) -> str:
        """A weight in int8, symmetric, one scale for each of its first axis."""
        largest = np.abs(value).reshape(len(value), -1).max(axis=1)
        scale = (largest / 127).astype(np.float32)
        column = scale.reshape(-1, *[1] * (value.ndim - 1))
        stored = self.constant(f"{name}.w", np.round(value / column).astype(np.int8))
        grid = [self.constant(f"{name}.s", scale), self.constant(f"{name}.z", np.zeros(len(scale), np.int8))]
        return self.op("DequantizeLinear", [stored, *grid], name, axis=0)

    def model(self, inputs: dict[str, tuple], outputs: dict[str, tuple], dtype: int = TensorProto.FLOAT) -> ir.Model:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, dtype, shape) for name, shape in outputs.items()],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(model)
        return ir.from_proto(model)


def cnn(middle: str | None = None, batch: int | str = 1) -> ir.Model:
    """Conv, Relu, optionally an op of the type `middle`, MaxPool, Flatten, Gemm."""
    net = Net()
    y = _body(net, net.qdq("x", 0.03), middle)
    return net.model({"x": (batch, 3, SIDE, SIDE)}, {net.qdq(y, 0.1): (batch, 10)})


def integer_cnn() -> ir.Model:
    """The same with integers at its inputs and outputs."""
    net = Net()
    grid = [net.constant("x.s", np.float32(0.03)), net.constant("x.z", np.uint8(128))]
    y = _body(net, net.op("DequantizeLinear", ["x", *grid], "x.d"), None)
    return net.model({"x": (1, 3, SIDE, SIDE)}, {net.quantize(y, 0.1): (1, 10)}, TensorProto.UINT8)


def two_matmuls() -> ir.Model:
    """A product of int16 tensors, which V68 refuses, and one of uint8 tensors beside it."""
    net = Net()
    outputs = {}
    for a, b, product, zero, dtype in (("A", "B", "wide", 0, np.int16), ("C", "D", "narrow", 128, np.uint8)):
        factors = [net.qdq(a, 0.01, zero, dtype), net.qdq(b, 0.01, zero, dtype)]
        outputs[net.qdq(net.op("MatMul", factors, product), 0.01, zero, dtype)] = (1, 4, 4)
    return net.model({"A": (1, 4, 8), "B": (1, 8, 4), "C": (1, 4, 8), "D": (1, 8, 4)}, outputs)


def wide_conv() -> ir.Model:
    """A Conv with 16-bit activations and weights, which V68 refuses after its layout was changed."""
    net = Net()
    values = np.random.default_rng(0).integers(-1000, 1000, (CHANNELS, 3, 3, 3)).astype(np.int16)
    grid = [net.constant("k.s", np.full(CHANNELS, 1e-4, np.float32)), net.constant("k.z", np.zeros(CHANNELS, np.int16))]
    kernel = net.op("DequantizeLinear", [net.constant("k.w", values), *grid], "kernel", axis=0)
    y = net.op("Conv", [net.qdq("x", 0.001, 32768, np.uint16), kernel], "conv")
    return net.model({"x": (1, 3, 8, 8)}, {net.qdq(y, 0.001, 32768, np.uint16): (1, CHANNELS, 6, 6)})


def one_op(op: str) -> ir.Model:
    """Nothing but one op between its Q/DQ pairs."""
    net = Net()
    y = net.op(op, [net.qdq("x")], "only")
    return net.model({"x": (1, 16)}, {net.qdq(y): (1, 16)})


def images(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs for `cnn`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)} for _ in range(count)]


def _body(net: Net, x: str, middle: str | None) -> str:
    rng = np.random.default_rng(0)
    kernel = net.weight("kernel", rng.normal(size=(CHANNELS, 3, 3, 3)) * 0.3)
    y = net.op("Relu", [net.op("Conv", [x, kernel], "conv", pads=[1, 1, 1, 1])], "relu")
    y = net.qdq(y, 0.03, 0)
    if middle is not None:
        y = net.qdq(net.op(middle, [y], "middle"))
    y = net.qdq(net.op("MaxPool", [y], "pool", kernel_shape=[2, 2], strides=[2, 2]), 0.03, 0)
    y = net.qdq(net.op("Flatten", [y], "flat"), 0.03, 0)
    features = CHANNELS * (SIDE // 2) ** 2
    return net.op("Gemm", [y, net.weight("matrix", rng.normal(size=(10, features)) * 0.1)], "scores", transB=1)
