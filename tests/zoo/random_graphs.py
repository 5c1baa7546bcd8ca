"""Random networks of 5 to 30 operators, each of the kinds that real models have: for images, or for tokens.

A seed is a network. Pieces are drawn one after the other and read the last result, and some of them an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.zoo.net import SeededNet

FEWEST, MOST = 5, 30
SIZES = (8, 12, 16, 24, 32)


class _Images(SeededNet):
    """A network on a picture; `shape` is that of the last result."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"images{seed}", seed)
        side = int(self.rng.choice([8, 12, 16]))
        self.shape = (1, 3, side, side)
        self.last = self.input("image", self.shape)
        self.earlier: dict[tuple[int, ...], str] = {}

    def grow(self, pieces: int) -> None:
        """Add one piece."""
        drawn: list[Callable[[], str]] = [
            *(self.conv, self.pointwise, self.depthwise, self.activation, self.normalize, self.pool, self.residual),
            *(self.squeeze, self.join, self.resize, self.deconvolve, self.cut, self.scale),
        ]
        # A network begins with a convolution, as real ones do.
        piece = self.conv if not pieces else drawn[int(self.rng.integers(len(drawn)))]
        self.last = piece()
        self.earlier[self.shape] = self.last

    def finish(self) -> None:
        pooled = self.op("Flatten", self.op("GlobalAveragePool", self.last), axis=1)
        self.output(self.gemm(pooled, self.shape[1], 10), "logits", [1, 10])

    def conv(self, kernel: int = 3, group: int = 1, width: int | None = None) -> str:
        _, channels, high, wide = self.shape
        width = width or int(self.rng.choice(SIZES))
        spread = self.spread(width)[:, None, None, None]
        fan = channels // group * kernel * kernel
        weight = self.normal((width, channels // group, kernel, kernel), spread / np.sqrt(fan))
        stride = 2 if kernel == 3 and group == 1 and high >= 8 and self.rng.random() < 0.3 else 1
        pad = kernel // 2
        self.shape = (1, width, (high - 1) // stride + 1, (wide - 1) // stride + 1)
        bias = self.normal((width,), 0.1)
        return self.op("Conv", self.last, weight, bias, pads=[pad] * 4, strides=[stride] * 2, group=group)

    def pointwise(self) -> str:
        return self.conv(kernel=1)

    def depthwise(self) -> str:
        return self.conv(int(self.rng.choice([3, 5])), group=self.shape[1], width=self.shape[1])

    def activation(self) -> str:
        kind = str(self.rng.choice(["Relu", "Clip", "HardSwish", "LeakyRelu", "SiLU", "Sigmoid", "Tanh", "GELU"]))
        if kind == "Clip":
            return self.op("Clip", self.last, self.const(0.0), self.const(6.0))
        if kind == "SiLU":
            return self.op("Mul", self.last, self.op("Sigmoid", self.last))
        if kind == "GELU":
            inner = self.op("Erf", self.op("Div", self.last, self.const(np.sqrt(2.0))))
            product = self.op("Mul", self.last, self.op("Add", inner, self.const(1.0)))
            return self.op("Mul", product, self.const(0.5))
        return self.op(kind, self.last)

    def normalize(self) -> str:
        channels = self.shape[1]
        scale, shift, mean = (self.normal((channels,), 0.2, at) for at in (1.0, 0.0, 0.0))
        variance = self.const(self.rng.uniform(0.5, 1.5, channels))
        return self.op("BatchNormalization", self.last, scale, shift, mean, variance)

    def pool(self) -> str:
        kind = str(self.rng.choice(["MaxPool", "AveragePool"]))
        _, channels, high, wide = self.shape
        if high < 4 or self.rng.random() < 0.3:
            return self.op(kind, self.last, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
        self.shape = (1, channels, high // 2, wide // 2)
        return self.op(kind, self.last, kernel_shape=[2, 2], strides=[2, 2])

    def residual(self) -> str:
        other = self.earlier.get(self.shape, self.last)
        if other == self.last:
            other = self.conv(width=self.shape[1], kernel=1)
        return self.op(str(self.rng.choice(["Add", "Add", "Mul", "Sub"])), self.last, other)

    def squeeze(self) -> str:
        """A gate for each channel, from the mean of it."""
        shape, kept = self.shape, self.last
        self.last, self.shape = self.op("GlobalAveragePool", kept), (1, shape[1], 1, 1)
        self.last = self.op("Relu", self.conv(kernel=1, width=8))
        gate = self.op(str(self.rng.choice(["Sigmoid", "HardSigmoid"])), self.conv(kernel=1, width=shape[1]))
        self.shape = shape
        return self.op("Mul", kept, gate)

    def join(self) -> str:
        other, shape = self.earlier.get(self.shape, self.last), self.shape
        if shape[1] > SIZES[-1]:
            return self.activation()
        self.shape = (1, 2 * shape[1], *shape[2:])
        return self.op("Concat", self.last, other, axis=1)

    def resize(self) -> str:
        _, channels, high, wide = self.shape
        if high > 12:
            return self.activation()
        self.shape = (1, channels, 2 * high, 2 * wide)
        kind = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.op("Resize", self.last, None, self.const([1, 1, 2, 2]), **kind)

    def deconvolve(self) -> str:
        _, channels, high, wide = self.shape
        if high > 12:
            return self.activation()
        width = int(self.rng.choice(SIZES))
        weight = self.normal((channels, width, 2, 2), 1 / np.sqrt(channels))
        self.shape = (1, width, 2 * high, 2 * wide)
        return self.op("ConvTranspose", self.last, weight, self.normal((width,), 0.1), strides=[2, 2])

    def cut(self) -> str:
        """Half of the channels."""
        half = self.shape[1] // 2
        self.shape = (1, half, *self.shape[2:])
        bounds = (self.const([at], np.int64) for at in (0, half, 1))
        return self.op("Slice", self.last, *bounds)

    def scale(self) -> str:
        """A scale for each channel, as layers have it that are added to what they read."""
        return self.op("Mul", self.last, self.normal((self.shape[1], 1, 1), 0.3, 0.5))


class _Tokens(SeededNet):
    """A network on a sequence of ids; every result has the shape of the embedding."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"tokens{seed}", seed)
        self.length, self.width = int(self.rng.choice([8, 12, 16])), int(self.rng.choice(SIZES))
        ids = self.input("ids", [1, self.length], onnx.TensorProto.INT64)
        self.last = self.op("Gather", self.normal((40, self.width), 0.5), ids)
        self.first = self.last

    def grow(self, pieces: int) -> None:
        """Add one piece."""
        drawn = [
            *(self.layer, self.layer, self.normalize, self.activation, self.residual, self.attend, self.gate),
            *(self.shift, self.halves, self.turn),
        ]
        before = self.last
        self.last = drawn[int(self.rng.integers(len(drawn)))]()
        self.first = before if self.rng.random() < 0.5 else self.first

    def finish(self) -> None:
        pooled = self.op("ReduceMean", self.last, axes=[1], keepdims=0)
        self.output(self.gemm(pooled, self.width, 10), "logits", [1, 10])

    def layer(self) -> str:
        return self.linear(self.last, self.width, self.width)

    def normalize(self) -> str:
        scale, shift = self.normal((self.width,), 0.2, 1.0), self.normal((self.width,), 0.1)
        return self.op("LayerNormalization", self.last, scale, shift, axis=-1, epsilon=1e-5)

    def activation(self) -> str:
        kind = str(self.rng.choice(["Relu", "Tanh", "Sigmoid", "GELU", "Softmax"]))
        if kind == "GELU":
            inner = self.op("Erf", self.op("Div", self.last, self.const(np.sqrt(2.0))))
            product = self.op("Mul", self.last, self.op("Add", inner, self.const(1.0)))
            return self.op("Mul", product, self.const(0.5))
        return self.op(kind, self.last)

    def residual(self) -> str:
        return self.op(str(self.rng.choice(["Add", "Add", "Sub"])), self.last, self.first)

    def attend(self) -> str:
        query, key, value = (self.layer() for _ in range(3))
        turned = self.op("Transpose", key, perm=[0, 2, 1])
        scores = self.op("MatMul", query, turned)
        scores = self.op("Mul", scores, self.const(1 / np.sqrt(self.width)))
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), value)

    def gate(self) -> str:
        return self.op("Mul", self.layer(), self.op("Sigmoid", self.last))

    def shift(self) -> str:
        return self.op("Add", self.last, self.normal((1, self.length, self.width), 0.3))

    def halves(self) -> str:
        """The two halves of the width, exchanged."""
        half = self.width // 2
        ends = [(half, self.width), (0, half)]
        parts = [
            self.op("Slice", self.last, *(self.const([at], np.int64) for at in (start, end, 2))) for start, end in ends
        ]
        return self.op("Concat", *parts, axis=2)

    def turn(self) -> str:
        """A layer along the sequence."""
        turned = self.op("Transpose", self.last, perm=[0, 2, 1])
        mixed = self.linear(turned, self.length, self.length)
        return self.op("Transpose", mixed, perm=[0, 2, 1])


def random_graph(seed: int) -> onnx.ModelProto:
    """The network of a seed; those of even seeds are for images, the others for tokens."""
    net = _Tokens(seed) if seed % 2 else _Images(seed)
    wanted = int(net.rng.integers(FEWEST, MOST - 4))
    pieces = 0
    while len(net.nodes) < wanted - 3:
        kept = len(net.nodes)
        net.grow(pieces)
        pieces += 1
        assert len(net.nodes) > kept, "every piece adds an operator"
    net.finish()
    return net.checked()
