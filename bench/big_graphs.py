"""Graphs of as many nodes as one asks for, and weights of as many bytes: for time and memory, not for accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.zoo.net import SeededNet

WIDTH = 16
# Weights of a layer of a language model of 3 billion parameters.
FEATURES = 4096


def layers(nodes: int) -> onnx.ModelProto:
    """Many small layers, one behind the other: a product, a bias, and a Relu."""
    net, x = _begun("layers")
    for _ in range(nodes // 3):
        x = net.op("Relu", net.linear(x, WIDTH, WIDTH, 1.4))
    return _ended(net, x)


def residual(nodes: int) -> onnx.ModelProto:
    """Convolutions with shortcuts: Conv, Relu, Conv, Add, Relu; a Mul behind every tenth keeps values finite."""
    net = SeededNet("residual", 0)
    x = net.input("x", (1, 8, 4, 4))
    for block in range(nodes * 10 // 51):
        y = net.op("Relu", _conv(net, x, 1.4))
        x = net.op("Relu", net.op("Add", x, _conv(net, y, 0.2)))
        # A block makes its values larger by a hundredth: 9,000 of them beyond what a float holds.
        x = net.op("Mul", x, net.const(0.8)) if block % 10 == 9 else x
    net.output(x, "y", (1, 8, 4, 4))
    return _model(net)


def chain(nodes: int) -> onnx.ModelProto:
    """A long chain of operators without weights to multiply, behind a layer that has them: alone they stay in float."""
    net, x = _begun("chain")
    x = net.linear(x, WIDTH, WIDTH)
    for number in range(nodes // 4):
        x = net.op("Sigmoid", net.op("Add", x, net.normal((WIDTH,), 0.3)))
        x = net.op("Mul", net.op("Transpose", x, perm=[0, 2, 1]), net.const(1.5 + number % 3))
    return _ended(net, x)


def fan(nodes: int) -> onnx.ModelProto:
    """One tensor with very many readers, whose results all meet in one Concat."""
    net, x = _begun("fan")
    ends = [net.op("Relu", net.linear(x, WIDTH, WIDTH)) for _ in range(nodes // 3)]
    return _ended(net, net.op("ReduceMean", net.op("Concat", *ends, axis=1), axes=[1], keepdims=1))


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "layers": layers,
    "residual": residual,
    "chain": chain,
    "fan": fan,
}


def gemms(size: int) -> onnx.ModelProto:
    """Gemm layers with weights of `size` bytes in the model itself."""
    net = SeededNet("gemms", 0)
    x = net.input("x", (1, FEATURES))
    for _ in range(max(1, size // (4 * FEATURES * FEATURES))):
        x = net.op("Relu", net.gemm(x, FEATURES, FEATURES))
    net.output(x, "y", (1, FEATURES))
    return _model(net)


def save_weights(path: Path, size: int) -> None:
    """Write a model of MatMul layers whose weights, `size` bytes, lie in a file beside it, one layer at a time."""
    rng = np.random.default_rng(0)
    count = max(1, size // (4 * FEATURES * FEATURES))
    nodes, weights, x = [], [], "x"
    with open(path.with_suffix(".data"), "wb") as file:
        for number in range(count):
            weights.append(_outside(f"weight_{number}", file.tell(), path.with_suffix(".data").name))
            drawn = rng.standard_normal((FEATURES, FEATURES), np.float32)
            file.write((drawn * np.float32(1.4 / np.sqrt(FEATURES))).tobytes())
            nodes.append(helper.make_node("MatMul", [x, weights[-1].name], [f"p{number}"], name=f"product_{number}"))
            x = "y" if number == count - 1 else f"x{number}"
            nodes.append(helper.make_node("Relu", [f"p{number}"], [x], name=f"relu_{number}"))
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4, FEATURES))] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "weights", *ports, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


def _outside(name: str, offset: int, location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=(FEATURES, FEATURES))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    length = 4 * FEATURES * FEATURES
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _conv(net: SeededNet, x: str, gain: float) -> str:
    weight = net.normal((8, 8, 3, 3), gain / np.sqrt(72))
    return net.op("Conv", x, weight, net.normal((8,), 0.1), pads=[1, 1, 1, 1])


def _begun(name: str) -> tuple[SeededNet, str]:
    net = SeededNet(name, 0)
    return net, net.input("x", (1, WIDTH, WIDTH))


def _ended(net: SeededNet, x: str) -> onnx.ModelProto:
    net.output(x, "y", (1, WIDTH, WIDTH) if net.name != "fan" else (1, 1, WIDTH))
    return _model(net)


def _model(net: SeededNet) -> onnx.ModelProto:
    return net.proto(net.inputs, net.outputs)
