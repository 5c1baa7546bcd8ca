"""The networks of the zoo once more, as other frameworks and people write them: nothing folded, nothing tidied up.

Each does what its namesake in `ZOO` does, in fewer layers; what differs is how it is written down. Images are pixels
from 0 to 255, and every pure colour occurs: what sums up few of them reaches all that it can.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.zoo import data
from tests.zoo.net import SeededNet

WIDTH, HEADS, TOKENS, VOCABULARY = 32, 4, 8, 48
PATCH, IMAGE = 8, 32
MEANS, DEVIATIONS = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)


def residual_cnn(seed: int = 4) -> onnx.ModelProto:
    """A ResNeXt as TensorFlow and Caffe write it: Sub and Pad in front, BN and BiasAdd apart, groups by Split."""
    net = SeededNet("residual_cnn", seed)
    x = net.op("Sub", net.input("image", (1, 3, IMAGE, IMAGE)), net.const(128.0))
    x = _norm(net, _conv(net, _padded(net, x), 3, 16, stride=2, pad=0, gain=1 / 64), 16)
    x = net.op("LeakyRelu", x, alpha=0.1)
    x = net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    groups = [_conv(net, part, 4, 4) for part in _split(net, x, 4)]
    y = net.op("Relu", _norm(net, net.op("Concat", *groups, axis=1), 16))
    x = net.op("Relu", net.op("Add", _conv(net, y, 16, 16), x))
    y = net.op("Relu", _bias_add(net, _conv(net, _padded(net, x), 16, 16, stride=2, pad=0, bias=False), 16))
    y = net.op("Resize", net.op("Relu", _conv(net, y, 16, 16)), "", net.const([1, 1, 2, 2]), mode="linear")
    x = net.op("Relu", net.op("Add", _norm(net, _conv(net, y, 16, 16), 16), x))
    pooled = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    net.output(_dense(net, pooled, 16, 10), "logits", (1, 10))
    return net.checked()


def depthwise_cnn(seed: int = 5) -> onnx.ModelProto:
    """A ShuffleNet with MobileOne's blocks: channels split and shuffled, scale branches, ReLU6, a factor in Gemm."""
    net = SeededNet("depthwise_cnn", seed)
    x = _centred(net, net.input("image", (1, 3, IMAGE, IMAGE)))
    x = net.op("Mul", x, net.const(1 / np.array(DEVIATIONS).reshape(1, 3, 1, 1)))
    x = _relu6(net, _norm(net, _conv(net, x, 3, 16, stride=2, gain=8.0), 16))
    kept, y = _split(net, x, 2)
    y = _relu6(net, _norm(net, _conv(net, y, 8, 8, kernel=1, gain=8.0), 8))
    scaled = _norm(net, _factors(net, y, 8), 8)
    y = _relu6(net, net.op("Add", _norm(net, _conv(net, y, 8, 8, groups=8), 8), scaled))
    x = _shuffle(net, net.op("Concat", kept, y, axis=1), 16, 16)
    branches = _bias_add(net, _factors(net, x, 16), 16), _relu6(net, _factors(net, x, 16))
    halves = (_relu6(net, _conv(net, branch, 16, 12, stride=2)) for branch in branches)
    x = net.op("Concat", *halves, axis=1)
    x = net.op("Mul", x, _gate(net, x, 24))
    x = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    net.output(_gemm(net, x, 24, 10, alpha=0.5, beta=2.0, transB=1), "logits", (1, 10))
    return net.checked()


def bert(seed: int = 6) -> onnx.ModelProto:
    """A MobileBERT: a bottleneck, one product for Q, K and V, scores masked by Where, tanh by sigmoid, tied words."""
    net = SeededNet("bert", seed)
    ids = net.input("input_ids", (1, TOKENS), TensorProto.INT64)
    mask = net.input("attention_mask", (1, TOKENS), TensorProto.INT64)
    table = net.normal((VOCABULARY, WIDTH), 0.6)
    live = net.op("Unsqueeze", net.op("Cast", mask, to=TensorProto.BOOL), net.const([1, 2], np.int64))
    x = _layer_norm(net, net.op("Add", net.op("Gather", table, ids), net.normal((1, TOKENS, WIDTH), 0.3)))
    narrow = net.linear(x, WIDTH, WIDTH // 2)
    x = _layer_norm(net, net.op("Add", _attention(net, narrow, TOKENS, WIDTH // 2, live), x))
    hidden = net.op("Relu", net.linear(x, WIDTH, 2 * WIDTH))
    x = _layer_norm(net, net.op("Add", net.linear(hidden, 2 * WIDTH, WIDTH), x))
    first = net.op("Gather", x, net.const(0, np.int64), axis=1)
    pooled = _tanh(net, _dense(net, first, WIDTH, WIDTH))
    words = net.op("MatMul", x, net.op("Transpose", table, perm=[1, 0]))
    net.output(words, "words", (1, TOKENS, VOCABULARY))
    net.output(_dense(net, pooled, WIDTH, 4), "logits", (1, 4))
    return net.checked()


def vit(seed: int = 7) -> onnx.ModelProto:
    """A vision transformer with colours last: YCbCr by a matrix, gated layers, tokens mixed by a transposed Gemm."""
    net = SeededNet("vit", seed)
    side, count = IMAGE // PATCH, (IMAGE // PATCH) ** 2
    x = _luma_and_chroma(net, net.input("image", (1, IMAGE, IMAGE, 3)))
    x = net.op("Div", x, net.const(64.0))
    x = net.op("Transpose", _reshape(net, x, 1, side, PATCH, side, PATCH, 3), perm=[0, 1, 3, 2, 4, 5])
    x = net.linear(_reshape(net, x, 1, count, 3 * PATCH**2), 3 * PATCH**2, WIDTH)
    x = net.op("Add", x, net.normal((1, count, WIDTH), 0.3))
    x = net.op("Add", x, _attention(net, _layer_norm(net, x), count, WIDTH))
    gate, value = _split(net, net.linear(_layer_norm(net, x), WIDTH, 4 * WIDTH), 2, axis=2)
    gated = net.op("Mul", net.op("Mul", gate, net.op("Sigmoid", gate)), value)
    x = _layer_norm(net, net.op("Add", x, net.linear(gated, 2 * WIDTH, WIDTH)))
    x = net.op("Sub", x, net.op("ReduceMean", x, axes=[2], keepdims=1))
    mixed = _gemm(net, _reshape(net, x, count, WIDTH), count, 4, transA=1, alpha=0.25)
    net.output(_dense(net, _reshape(net, net.op("Relu", mixed), 1, 4 * WIDTH), 4 * WIDTH, 10), "logits", (1, 10))
    return net.checked()


VARIANTS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual_cnn": residual_cnn,
    "depthwise_cnn": depthwise_cnn,
    "bert": bert,
    "vit": vit,
}


def rows(model: onnx.ModelProto, count: int) -> list[dict[str, np.ndarray]]:
    """Inputs of a variant, one row each: images with channels where it has them, or ids and masks."""
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    given = {"image": _pixels(count, shapes["image"][-1] == 3)} if "image" in shapes else data(model, count)
    return [{name: array[index : index + 1] for name, array in given.items()} for index in range(count)]


def _pixels(count: int, channels_last: bool) -> np.ndarray:
    """Images of bytes in blocks of about one colour, with the eight pure colours in their first row."""
    rng = np.random.default_rng(0)
    blocks = rng.normal(128, 50, (count, 3, 8, 8)).repeat(IMAGE // 8, 2).repeat(IMAGE // 8, 3)
    pixels = np.clip(np.rint(blocks + rng.normal(0, 20, blocks.shape)), 0, 255).astype(np.float32)
    pixels[:, :, 0, :8] = np.array(list(itertools.product((0, 255), repeat=3))).T
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)) if channels_last else pixels


def _centred(net: SeededNet, x: str) -> str:
    """Pixels minus the mean of their channel, as a convolution of every channel by itself."""
    weight, bias = net.const(np.ones((3, 1, 1, 1))), net.const(-np.array(MEANS))
    return net.op("Conv", x, weight, bias, group=3, kernel_shape=[1, 1])


def _factors(net: SeededNet, x: str, channels: int) -> str:
    """A factor for each channel, as a convolution of every channel by itself."""
    return net.op("Conv", x, net.const(net.rng.uniform(0.5, 1.5, (channels, 1, 1, 1))), group=channels)


def _luma_and_chroma(net: SeededNet, x: str) -> str:
    """RGB to YCbCr (ITU-R BT.601): a matrix and an offset."""
    matrix = [[0.299, -0.168736, 0.5], [0.587, -0.331264, -0.418688], [0.114, 0.5, -0.081312]]
    colours = net.op("MatMul", _reshape(net, x, IMAGE * IMAGE, 3), net.const(matrix))
    return net.op("Add", colours, net.const([0, 128, 128]))


def _conv(
    net: SeededNet,
    x: str,
    cin: int,
    cout: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    pad: int | None = None,
    gain: float = 1.0,
    bias: bool = True,
) -> str:
    scale = gain * net.spread(cout)[:, None, None, None] * np.sqrt(1 / (cin // groups * kernel**2))
    weight = net.normal((cout, cin // groups, kernel, kernel), scale, mean=0.2 * float(np.mean(scale)))
    pads = [kernel // 2 if pad is None else pad] * 4
    added = [net.normal((cout,), 0.1)] if bias else []
    return net.op(
        "Conv", x, weight, *added, group=groups, kernel_shape=[kernel, kernel], pads=pads, strides=[stride, stride]
    )


def _padded(net: SeededNet, x: str) -> str:
    """Padding below and on the right, as TensorFlow has it before a convolution of stride 2."""
    return net.op("Pad", x, net.const([0, 0, 0, 0, 0, 0, 1, 1], np.int64))


def _norm(net: SeededNet, x: str, channels: int) -> str:
    gamma, beta = net.const(net.rng.uniform(0.6, 1.4, channels)), net.normal((channels,), 0.2)
    mean, variance = net.normal((channels,), 0.1), net.const(net.rng.uniform(0.7, 1.4, channels))
    return net.op("BatchNormalization", x, gamma, beta, mean, variance, epsilon=1e-5)


def _bias_add(net: SeededNet, x: str, channels: int) -> str:
    """A bias in a node of its own, as TensorFlow has it."""
    return net.op("Add", x, net.normal((1, channels, 1, 1), 0.2))


def _relu6(net: SeededNet, x: str) -> str:
    return net.op("Clip", x, net.const(0.0), net.const(6.0))


def _split(net: SeededNet, x: str, parts: int, axis: int = 1) -> list[str]:
    name = f"/Split_{len(net.nodes)}"
    outputs = [f"{name}_output_{index}" for index in range(parts)]
    net.nodes.append(helper.make_node("Split", [x], outputs, name=name, axis=axis))
    return outputs


def _shuffle(net: SeededNet, x: str, channels: int, size: int) -> str:
    """Channels of two groups, interleaved."""
    x = _reshape(net, x, 1, 2, channels // 2, size, size)
    return _reshape(net, net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), 1, channels, size, size)


def _gate(net: SeededNet, x: str, channels: int) -> str:
    """Squeeze-excite with matrices, as Keras writes it."""
    squeezed = net.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    hidden = net.op("Relu", _dense(net, squeezed, channels, 8))
    return _reshape(net, net.op("Sigmoid", _dense(net, hidden, 8, channels)), 1, channels, 1, 1)


def _dense(net: SeededNet, x: str, width_in: int, width_out: int) -> str:
    """x · W + b on matrices, as TensorFlow and Keras write it."""
    product = net.op("MatMul", x, net.normal((width_in, width_out), net.spread(width_out) / np.sqrt(width_in)))
    return net.op("Add", product, net.normal((width_out,), 0.1))


def _gemm(net: SeededNet, x: str, width_in: int, width_out: int, **attributes: float) -> str:
    shape = (width_out, width_in) if attributes.get("transB") else (width_in, width_out)
    return net.op("Gemm", x, net.normal(shape, 1 / np.sqrt(width_in)), net.normal((width_out,), 0.1), **attributes)


def _attention(net: SeededNet, x: str, tokens: int, width: int, live: str | None = None) -> str:
    """Attention with one projection, Split in three; where tokens are masked, their scores are set low."""
    parts = _split(net, net.linear(x, width, 3 * WIDTH), 3, axis=2)
    query, keys, values = (_reshape(net, part, 1, tokens, HEADS, WIDTH // HEADS) for part in parts)
    query, values = (net.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, values))
    query = net.op("Mul", query, net.const((WIDTH // HEADS) ** -0.5))
    scores = net.op("MatMul", query, net.op("Transpose", keys, perm=[0, 2, 3, 1]))
    if live is not None:
        scores = net.op("Where", live, scores, net.const(-30.0))
    context = net.op("MatMul", net.op("Softmax", scores, axis=-1), values)
    merged = _reshape(net, net.op("Transpose", context, perm=[0, 2, 1, 3]), 1, tokens, WIDTH)
    return net.linear(merged, WIDTH, WIDTH)


def _tanh(net: SeededNet, x: str) -> str:
    """tanh(x) = 2 · sigmoid(2x) - 1, for runtimes that have no Tanh."""
    doubled = net.op("Sigmoid", net.op("Mul", x, net.const(2.0)))
    return net.op("Sub", net.op("Mul", doubled, net.const(2.0)), net.const(1.0))


def _layer_norm(net: SeededNet, x: str) -> str:
    scale, bias = net.const(net.rng.uniform(0.6, 1.4, WIDTH)), net.normal((WIDTH,), 0.1)
    return net.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _reshape(net: SeededNet, x: str, *shape: int) -> str:
    return net.op("Reshape", x, net.const(shape, np.int64))
