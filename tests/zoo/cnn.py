"""Convolutional networks: residual, and depthwise-separable with squeeze-excite."""

from __future__ import annotations

import numpy as np
import onnx

from tests.zoo.net import SeededNet


def residual_cnn(seed: int = 0) -> onnx.ModelProto:
    """A ResNet in miniature: stem with MaxPool, an identity block, a strided block, a classifier."""
    net = SeededNet("residual_cnn", seed)
    x = net.input("image", (1, 3, 32, 32))
    x = net.op("Relu", _conv_bn(net, x, 3, 16, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = _residual_block(net, x, 16, 16, stride=1)
    x = _residual_block(net, x, 16, 32, stride=2)
    net.output(_classifier(net, x, 32, 10), "logits", (1, 10))
    return net.checked()


def depthwise_cnn(seed: int = 1) -> onnx.ModelProto:
    """A MobileNet in miniature: depthwise-separable blocks, ReLU6, HardSwish, both forms of squeeze-excite."""
    net = SeededNet("depthwise_cnn", seed)
    x = net.input("image", (1, 3, 32, 32))
    x = net.op("HardSwish", _conv_bn(net, x, 3, 16, stride=2))

    x = _relu6(net, _conv_bn(net, x, 16, 16, groups=16, power=0.7))
    x = _squeeze_excite(net, x, 16, "Sigmoid")
    x = _conv_bn(net, x, 16, 16, kernel=1, power=0.17)

    wide = net.op("HardSwish", _conv_bn(net, x, 16, 48, kernel=1))
    wide = net.op("HardSwish", _conv_bn(net, wide, 48, 48, groups=48, power=0.5))
    wide = _squeeze_excite(net, wide, 48, "HardSigmoid", alpha=1 / 6, beta=0.5)
    x = net.op("Add", x, _conv_bn(net, wide, 48, 16, kernel=1, power=0.2))

    x = _relu6(net, _conv_bn(net, x, 16, 32, stride=2, power=5.0))
    net.output(_classifier(net, x, 32, 10), "logits", (1, 10))
    return net.checked()


def inverted_residual_cnn(seed: int = 4) -> onnx.ModelProto:
    """A MobileNetV2 in miniature: blocks that widen, filter by channel and narrow, with and without a shortcut."""
    net = SeededNet("inverted_residual_cnn", seed)
    x = net.input("image", (1, 3, 32, 32))
    x = _relu6(net, _conv_bn(net, x, 3, 16, stride=2))
    for cin, cout, stride in ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2)):
        wide = _relu6(net, _conv_bn(net, x, cin, 4 * cin, kernel=1))
        wide = _relu6(net, _conv_bn(net, wide, 4 * cin, 4 * cin, groups=4 * cin, stride=stride))
        narrow = _conv_bn(net, wide, 4 * cin, cout, kernel=1)
        x = narrow if stride != 1 or cin != cout else net.op("Add", x, narrow)
    net.output(_classifier(net, x, 32, 10), "logits", (1, 10))
    return net.checked()


def _conv_bn(
    net: SeededNet,
    x: str,
    cin: int,
    cout: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    power: float = 1.2,
) -> str:
    """Convolution without bias, then BatchNormalization with statistics that fit it.

    `power` is about the variance of the convolution's output, as training would have found it.
    """
    fan_in = cin // groups * kernel**2
    spread = net.spread(cout)
    weight = net.normal((cout, cin // groups, kernel, kernel), spread[:, None, None, None] * np.sqrt(2 / fan_in))
    pad = kernel // 2
    y = net.op(
        "Conv",
        x,
        weight,
        dilations=[1, 1],
        group=groups,
        kernel_shape=[kernel, kernel],
        pads=[pad, pad, pad, pad],
        strides=[stride, stride],
    )
    variance = net.const(spread**2 * power * net.rng.uniform(0.7, 1.4, cout))
    gamma, beta = net.const(net.rng.uniform(0.6, 1.4, cout)), net.normal((cout,), 0.2)
    mean = net.normal((cout,), 0.3 * np.sqrt(power))
    return net.op("BatchNormalization", y, gamma, beta, mean, variance, epsilon=1e-5)


def _residual_block(net: SeededNet, x: str, cin: int, cout: int, *, stride: int) -> str:
    y = net.op("Relu", _conv_bn(net, x, cin, cout, stride=stride))
    y = _conv_bn(net, y, cout, cout)
    changes_shape = stride != 1 or cin != cout
    shortcut = _conv_bn(net, x, cin, cout, kernel=1, stride=stride) if changes_shape else x
    return net.op("Relu", net.op("Add", y, shortcut))


def _relu6(net: SeededNet, x: str) -> str:
    return net.op("Clip", x, net.const(0.0), net.const(6.0))


def _squeeze_excite(net: SeededNet, x: str, channels: int, gate: str, **attributes: float) -> str:
    squeezed = net.op("GlobalAveragePool", x)
    hidden = net.op("Relu", _pointwise(net, squeezed, channels, channels // 4))
    weights = net.op(gate, _pointwise(net, hidden, channels // 4, channels), **attributes)
    return net.op("Mul", weights, x)


def _pointwise(net: SeededNet, x: str, cin: int, cout: int) -> str:
    weight = net.normal((cout, cin, 1, 1), net.spread(cout)[:, None, None, None] * np.sqrt(2 / cin))
    return net.op("Conv", x, weight, net.normal((cout,), 0.1), kernel_shape=[1, 1])


def _classifier(net: SeededNet, x: str, channels: int, classes: int) -> str:
    return net.gemm(net.op("Flatten", net.op("GlobalAveragePool", x), axis=1), channels, classes)
