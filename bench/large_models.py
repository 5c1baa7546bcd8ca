"""Models of the size of a ResNet-50 and a ViT-S, with random weights: for time and memory, not for accuracy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.zoo.net import SeededNet  # noqa: E402

IMAGE = (1, 3, 224, 224)


def cnn() -> onnx.ModelProto:
    """53 convolutions in 16 bottlenecks, 25 million weights."""
    net = SeededNet("bottlenecks", 0)
    x = net.op("Relu", _conv(net, net.input("image", IMAGE), 3, 64, 7, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width_in = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            x = _bottleneck(net, x, width_in, width, stride if index == 0 else 1)
            width_in = 4 * width
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.gemm(x, width_in, 1000), "logits", (1, 1000))
    return net.checked()


def _conv(
    net: SeededNet, x: str, width_in: int, width_out: int, kernel: int, *, stride: int = 1, gain: float = 1.4
) -> str:
    weight = net.normal((width_out, width_in, kernel, kernel), gain / np.sqrt(width_in * kernel * kernel))
    pads = [kernel // 2] * 4
    return net.op("Conv", x, weight, net.normal((width_out,), 0.1), strides=[stride] * 2, pads=pads)


def _bottleneck(net: SeededNet, x: str, width_in: int, width: int, stride: int) -> str:
    y = net.op("Relu", _conv(net, x, width_in, width, 1))
    y = net.op("Relu", _conv(net, y, width, width, 3, stride=stride))
    y = _conv(net, y, width, 4 * width, 1, gain=0.5)
    same = stride == 1 and width_in == 4 * width
    return net.op("Relu", net.op("Add", y, x if same else _conv(net, x, width_in, 4 * width, 1, stride=stride)))


def transformer(layers: int = 12, width: int = 384, heads: int = 6) -> onnx.ModelProto:
    """Patches of 16 × 16, a class token, `layers` blocks that normalise first, 22 million weights."""
    net = SeededNet("blocks", 0)
    patches = _conv_patches(net, net.input("image", IMAGE), width)
    x = net.op("Concat", net.normal((1, 1, width), 0.5), patches, axis=1)
    x = net.op("Add", x, net.normal((1, 197, width), 0.5))
    for _ in range(layers):
        x = net.op("Add", x, _attention(net, _normalised(net, x, width), width, heads))
        y = _gelu(net, net.linear(_normalised(net, x, width), width, 4 * width))
        x = net.op("Add", x, net.linear(y, 4 * width, width, 0.5))
    first = net.op("Gather", _normalised(net, x, width), net.const(0, np.int64), axis=1)
    net.output(net.gemm(first, width, 1000), "logits", (1, 1000))
    return net.checked()


def _conv_patches(net: SeededNet, image: str, width: int) -> str:
    weight = net.normal((width, 3, 16, 16), 1 / np.sqrt(3 * 256))
    grid = net.op("Conv", image, weight, net.normal((width,), 0.1), strides=[16, 16])
    return net.op("Transpose", net.op("Reshape", grid, net.const([1, width, 196], np.int64)), perm=[0, 2, 1])


def _normalised(net: SeededNet, x: str, width: int) -> str:
    return net.op("LayerNormalization", x, net.normal((width,), 0.1, 1.0), net.normal((width,), 0.1), axis=-1)


def _gelu(net: SeededNet, x: str) -> str:
    error = net.op("Erf", net.op("Div", x, net.const(np.sqrt(2))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", error, net.const(1.0))), net.const(0.5))


def _attention(net: SeededNet, x: str, width: int, heads: int) -> str:
    split = net.const([1, 197, heads, width // heads], np.int64)
    q, k, v = (net.op("Reshape", net.linear(x, width, width), split) for _ in range(3))
    scores = net.op("MatMul", net.op("Transpose", q, perm=[0, 2, 1, 3]), net.op("Transpose", k, perm=[0, 2, 3, 1]))
    scores = net.op("Softmax", net.op("Mul", scores, net.const((width // heads) ** -0.5)), axis=-1)
    context = net.op("MatMul", scores, net.op("Transpose", v, perm=[0, 2, 1, 3]))
    merged = net.op("Reshape", net.op("Transpose", context, perm=[0, 2, 1, 3]), net.const([1, 197, width], np.int64))
    return net.linear(merged, width, width, 0.5)


MODELS = {"cnn": cnn, "transformer": transformer}
