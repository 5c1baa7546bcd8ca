"""Small quantized models, for a compiler to take or to refuse."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto

from tests.builder import Net

CHANNELS = 8
SIDE = 8
MIDDLE = np.uint8(128)


def cnn(middle: str | None = None, batch: int | str = 1) -> ir.Model:
    """Conv, Relu, optionally an op of the type `middle`, MaxPool, Flatten, Gemm."""
    net = Net()
    net.input("x", (batch, 3, SIDE, SIDE))
    return net.model({}, _qdq(net, _body(net, _qdq(net, "x", 0.03), middle), 0.1))


def integer_cnn() -> ir.Model:
    """The same with integers at its inputs and outputs."""
    net = Net()
    net.input("x", (1, 3, SIDE, SIDE), TensorProto.UINT8)
    y = _body(net, net.dequantize("x", 0.03, np.uint8(128)), None)
    return net.model({}, net.quantize(y, 0.1, np.uint8(128), _output=f"{y}.q"))


def two_matmuls() -> ir.Model:
    """A product of int16 tensors, which V68 refuses, and one of uint8 tensors beside it."""
    net, outputs = Net(), []
    for a, b, product, zero in (("A", "B", "wide", np.int16(0)), ("C", "D", "narrow", np.uint8(128))):
        factors = _qdq(net, net.input(a, (1, 4, 8)), 0.01, zero), _qdq(net, net.input(b, (1, 8, 4)), 0.01, zero)
        outputs.append(_qdq(net, net.op("MatMul", *factors, _output=product), 0.01, zero))
    return net.model({}, *outputs)


def wide_conv() -> ir.Model:
    """A Conv with 16-bit activations and weights, which V68 refuses after its layout was changed."""
    net = Net()
    return net.model({}, _wide(net, net.input("x", (1, 3, SIDE, SIDE))))


def conv_before_wide_conv() -> ir.Model:
    """The same behind a Conv of 8 bits, which V68 takes."""
    net = Net()
    kernel = _weight(net, np.random.default_rng(1).normal(size=(3, 3, 3, 3)) * 0.3)
    x = _qdq(net, net.input("x", (1, 3, SIDE, SIDE)), 0.03)
    first = _qdq(net, net.op("Conv", x, kernel, pads=[1, 1, 1, 1], _output="first"), 0.03)
    return net.model({}, _wide(net, first))


def _wide(net: Net, x: str) -> str:
    values = np.random.default_rng(0).integers(-1000, 1000, (CHANNELS, 3, 3, 3)).astype(np.int16)
    kernel = net.dequantize(values, np.full(CHANNELS, 1e-4), np.zeros(CHANNELS, np.int16), axis=0)
    x = _qdq(net, x, 0.001, np.uint16(32768))
    return _qdq(net, net.op("Conv", x, kernel, _output="conv"), 0.001, np.uint16(32768))


def one_op(op: str) -> ir.Model:
    """Nothing but one op between its Q/DQ pairs."""
    net = Net()
    return net.model({}, _qdq(net, net.op(op, _qdq(net, net.input("x", (1, 16))), _output="only")))


def images(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs for `cnn`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)} for _ in range(count)]


def _qdq(net: Net, x: str, scale: float = 0.05, zero: np.integer = MIDDLE) -> str:
    """A Q/DQ pair behind `x`, which names both."""
    return net.dequantize(net.quantize(x, scale, zero, _output=f"{x}.q"), scale, zero, _output=f"{x}.d")


def _weight(net: Net, value: np.ndarray) -> str:
    """A weight in int8, symmetric, one scale for each of its first axis."""
    scale = (np.abs(value).reshape(len(value), -1).max(axis=1) / 127).astype(np.float32)
    stored = np.round(value / scale.reshape(-1, *[1] * (value.ndim - 1))).astype(np.int8)
    return net.dequantize(stored, scale, np.zeros(len(scale), np.int8), axis=0)


def _body(net: Net, x: str, middle: str | None) -> str:
    rng, zero = np.random.default_rng(0), np.uint8(0)
    kernel = _weight(net, rng.normal(size=(CHANNELS, 3, 3, 3)) * 0.3)
    y = net.op("Conv", x, kernel, pads=[1, 1, 1, 1], _output="conv")
    y = _qdq(net, net.op("Relu", y, _output="relu"), 0.03, zero)
    if middle is not None:
        y = _qdq(net, net.op(middle, y, _output="middle"))
    y = _qdq(net, net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], _output="pool"), 0.03, zero)
    y = _qdq(net, net.op("Flatten", y, _output="flat"), 0.03, zero)
    matrix = _weight(net, rng.normal(size=(10, CHANNELS * (SIDE // 2) ** 2)) * 0.1)
    return net.op("Gemm", y, matrix, transB=1, _output="scores")
