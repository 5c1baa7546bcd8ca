"""Networks of the size that people deploy, with drawn weights: ResNet-50, MobileNetV2, ViT-S and BERT-base.

Every size is a parameter, so that the same structure is also had small. Statistics of batch normalization are those of
the network on random images: after each of them values have mean `beta` and deviation `gamma`, as in a trained network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from tests.zoo import data
from tests.zoo.net import SeededNet
from tests.zoo.transformer import EncoderSize, bert, vit

# Images by which statistics are found: the last layers of the largest network have 49 values a channel of each.
_IMAGES = 4


def resnet50(
    image: int = 224, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000, seed: int = 10
) -> onnx.ModelProto:
    """A ResNet-50: a stem, four stages of bottlenecks that halve the image, 53 convolutions, 25 million weights."""
    net = SeededNet("resnet50", seed)
    x = net.op("Relu", _conv_bn(net, net.input("image", (1, 3, image, image)), (3, width), kernel=7, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = width
    for stage, depth in enumerate(depths):
        inner = width * 2**stage
        for index in range(depth):
            x = _bottleneck(net, x, (before, inner, 4 * inner), stride=2 if stage and index == 0 else 1)
            before = 4 * inner
    return _classified(net, x, before, classes)


def mobilenet_v2(
    image: int = 224,
    depths: Sequence[int] = (1, 2, 3, 4, 3, 3, 1),
    width: float = 1.0,
    classes: int = 1000,
    seed: int = 11,
) -> onnx.ModelProto:
    """A MobileNetV2: blocks that widen, filter by channel and narrow, Relu6, 3.5 million weights."""
    net = SeededNet("mobilenet_v2", seed)
    before = _channels(32, width)
    x = _relu6(net, _conv_bn(net, net.input("image", (1, 3, image, image)), (3, before), kernel=3, stride=2))
    stages = zip((1, 6, 6, 6, 6, 6, 6), (16, 24, 32, 64, 96, 160, 320), depths, (1, 2, 2, 2, 1, 2, 1), strict=True)
    for factor, channels, depth, stride in stages:
        after = _channels(channels, width)
        for index in range(depth):
            x = _inverted_residual(net, x, (before, factor * before, after), stride=stride if index == 0 else 1)
            before = after
    last = _channels(1280, max(width, 1.0))
    return _classified(net, _relu6(net, _conv_bn(net, x, (before, last))), last, classes)


def vit_small(
    image: int = 224,
    layers: int = 12,
    width: int = 384,
    heads: int = 6,
    classes: int = 1000,
    patch: int = 16,
    seed: int = 12,
) -> onnx.ModelProto:
    """A ViT-S: patches of 16 pixels, a class token, twelve blocks that normalize first, 22 million weights."""
    size = EncoderSize(layers, heads, width, 4 * width, classes, image=image, patch=patch)
    return vit("erf", seed, size)


def bert_base(
    tokens: int = 128, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 30522, seed: int = 13
) -> onnx.ModelProto:
    """A BERT-base: a masked encoder of twelve layers that normalize last, 109 million weights."""
    size = EncoderSize(layers, heads, width, 4 * width, classes=2, tokens=tokens, vocabulary=vocabulary)
    return bert("erf", seed, size)


def _conv_bn(
    net: SeededNet,
    x: str,
    channels: tuple[int, int],
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    gamma: float = 1.0,
) -> str:
    """A convolution without bias and its normalization, with statistics that are found later."""
    cin, cout = channels
    scale = net.spread(cout)[:, None, None, None] / np.sqrt(cin // groups * kernel**2)
    weight = net.normal((cout, cin // groups, kernel, kernel), scale)
    sizes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
    y = net.op("Conv", x, weight, group=groups, dilations=[1, 1], **sizes)
    factors, beta = net.const(gamma * net.rng.uniform(0.6, 1.4, cout)), net.normal((cout,), 0.2)
    return net.op(
        "BatchNormalization", y, factors, beta, net.const(np.zeros(cout)), net.const(np.ones(cout)), epsilon=1e-5
    )


def _bottleneck(net: SeededNet, x: str, channels: tuple[int, int, int], *, stride: int) -> str:
    before, inner, after = channels
    y = net.op("Relu", _conv_bn(net, x, (before, inner)))
    y = net.op("Relu", _conv_bn(net, y, (inner, inner), kernel=3, stride=stride))
    y = _conv_bn(net, y, (inner, after), gamma=0.5)
    shortcut = x if stride == 1 and before == after else _conv_bn(net, x, (before, after), stride=stride)
    return net.op("Relu", net.op("Add", y, shortcut))


def _inverted_residual(net: SeededNet, x: str, channels: tuple[int, int, int], *, stride: int) -> str:
    before, inner, after = channels
    wide = x if inner == before else _relu6(net, _conv_bn(net, x, (before, inner)))
    wide = _relu6(net, _conv_bn(net, wide, (inner, inner), kernel=3, stride=stride, groups=inner))
    narrow = _conv_bn(net, wide, (inner, after))
    return net.op("Add", x, narrow) if stride == 1 and before == after else narrow


def _relu6(net: SeededNet, x: str) -> str:
    return net.op("Clip", x, net.const(0.0), net.const(6.0))


def _channels(count: int, width: float) -> int:
    """A number of channels in another width, as torchvision rounds it: a multiple of 8, at most a tenth smaller."""
    rounded = max(8, int(count * width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * count * width else rounded


def _classified(net: SeededNet, x: str, channels: int, classes: int) -> onnx.ModelProto:
    logits = net.gemm(net.op("Flatten", net.op("GlobalAveragePool", x), axis=1), channels, classes)
    net.output(logits, "logits", (1, classes))
    return _with_statistics(net.checked())


def _with_statistics(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with means and variances of random images, found in one run that normalizes by its own batch."""
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    found = _trained(model, [list(node.input[3:]) for node in norms])
    for tensor in model.graph.initializer:
        if tensor.name in found:
            tensor.CopyFrom(numpy_helper.from_array(found[tensor.name], tensor.name))
    return model


def _trained(model: onnx.ModelProto, statistics: Sequence[list[str]]) -> dict[str, np.ndarray]:
    """The mean and variance of each normalization over a batch, by the names of the constants that are to hold them."""
    training = onnx.ModelProto()
    training.CopyFrom(model)
    norms = [node for node in training.graph.node if node.op_type == "BatchNormalization"]
    for node, names in zip(norms, statistics, strict=True):
        node.attribute.extend([helper.make_attribute("training_mode", 1), helper.make_attribute("momentum", 0.0)])
        node.output.extend(f"{name}.found" for name in names)
        training.graph.output.extend(
            helper.make_tensor_value_info(f"{name}.found", TensorProto.FLOAT, None) for name in names
        )
    training.graph.input[0].type.tensor_type.shape.dim[0].dim_value = _IMAGES
    names = [name for pair in statistics for name in pair]
    session = ort.InferenceSession(training.SerializeToString(), _quiet())
    results = session.run([f"{name}.found" for name in names], data(model, _IMAGES))
    return dict(zip(names, results, strict=True))


def _quiet() -> ort.SessionOptions:
    """One thread, for the same sums every time; no words about outputs of one image that now has several."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return options
