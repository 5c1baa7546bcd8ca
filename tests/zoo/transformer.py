"""Encoders as torch exports them: BERT (post-norm, masked) and ViT (pre-norm, class token)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto

from tests.zoo.net import SeededNet

Gelu = Literal["erf", "tanh"]


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """The size of an encoder; the last four belong to texts and to images."""

    layers: int = 2
    heads: int = 4
    width: int = 64
    hidden: int = 128
    classes: int = 4
    tokens: int = 16
    vocabulary: int = 96
    image: int = 32
    patch: int = 8

    @property
    def head_width(self) -> int:
        """Numbers for each head."""
        return self.width // self.heads

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2


SMALL = EncoderSize()
SMALL_IMAGES = EncoderSize(classes=10)


def bert(gelu: Gelu = "erf", seed: int = 2, size: EncoderSize = SMALL) -> onnx.ModelProto:
    """A BERT encoder with an additive mask, and a classifier on its first token."""
    net = SeededNet("bert", seed)
    ids = net.input("input_ids", (1, size.tokens), TensorProto.INT64)
    mask = net.input("attention_mask", (1, size.tokens), TensorProto.INT64)
    types = net.input("token_type_ids", (1, size.tokens), TensorProto.INT64)

    bias = _additive_mask(net, mask)
    x = _embeddings(net, ids, types, size)
    for _ in range(size.layers):
        x = _layer_norm(net, net.op("Add", _attention(net, x, bias, size), x), size.width)
        x = _layer_norm(net, net.op("Add", _feed_forward(net, x, gelu, size), x), size.width)

    first = net.op("Gather", x, net.const(0, np.int64), axis=1)
    pooled = net.op("Tanh", net.gemm(first, size.width, size.width))
    net.output(x, "last_hidden_state", (1, size.tokens, size.width))
    net.output(net.gemm(pooled, size.width, size.classes), "logits", (1, size.classes))
    return net.checked()


def vit(gelu: Gelu = "tanh", seed: int = 3, size: EncoderSize = SMALL_IMAGES) -> onnx.ModelProto:
    """A vision transformer: Conv patches, class token, pre-norm blocks with one QKV projection."""
    net = SeededNet("vit", seed)
    x = _patches(net, net.input("image", (1, 3, size.image, size.image)), size)
    for _ in range(size.layers):
        x = net.op("Add", x, _fused_attention(net, _layer_norm(net, x, size.width), size))
        x = net.op("Add", x, _feed_forward(net, _layer_norm(net, x, size.width), gelu, size))
    token = net.op("Gather", _layer_norm(net, x, size.width), net.const(0, np.int64), axis=1)
    net.output(net.gemm(token, size.width, size.classes), "logits", (1, size.classes))
    return net.checked()


def _additive_mask(net: SeededNet, mask: str) -> str:
    """(1 - mask) * -10000, shaped [batch, 1, 1, keys]."""
    mask = net.op("Unsqueeze", mask, net.const([1], np.int64))
    mask = net.op("Unsqueeze", mask, net.const([2], np.int64))
    live = net.op("Cast", mask, to=TensorProto.FLOAT)
    return net.op("Mul", net.op("Sub", net.const(1.0), live), net.const(-10000.0))


def _embeddings(net: SeededNet, ids: str, types: str, size: EncoderSize) -> str:
    words = net.op("Gather", net.normal((size.vocabulary, size.width), 0.6), ids)
    kinds = net.op("Gather", net.normal((2, size.width), 0.3), types)
    positions = net.op(
        "Gather", net.normal((2 * size.tokens, size.width), 0.3), net.const([range(size.tokens)], np.int64)
    )
    return _layer_norm(net, net.op("Add", net.op("Add", words, kinds), positions), size.width)


def _patches(net: SeededNet, image: str, size: EncoderSize) -> str:
    scale = net.spread(size.width)[:, None, None, None] / np.sqrt(3 * size.patch**2)
    weight, bias = net.normal((size.width, 3, size.patch, size.patch), scale), net.normal((size.width,), 0.1)
    x = net.op("Conv", image, weight, bias, kernel_shape=[size.patch, size.patch], strides=[size.patch, size.patch])
    x = net.op("Transpose", _reshape(net, x, 1, size.width, size.patches), perm=[0, 2, 1])
    x = net.op("Concat", net.normal((1, 1, size.width), 0.5), x, axis=1)
    return net.op("Add", x, net.normal((1, size.patches + 1, size.width), 0.3))


def _attention(net: SeededNet, x: str, bias: str, size: EncoderSize) -> str:
    """Attention with a projection each for Q, K and V, scores divided by sqrt(head width) and masked."""
    query = net.op("Transpose", _heads(net, x, size), perm=[0, 2, 1, 3])
    keys = net.op("Transpose", _heads(net, x, size), perm=[0, 2, 3, 1])
    values = net.op("Transpose", _heads(net, x, size), perm=[0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", query, keys), net.const(np.sqrt(size.head_width)))
    weights = net.op("Softmax", net.op("Add", scores, bias), axis=-1)
    return _merge_heads(net, net.op("MatMul", weights, values), size.tokens, size)


def _heads(net: SeededNet, x: str, size: EncoderSize) -> str:
    return _reshape(net, net.linear(x, size.width, size.width), 1, size.tokens, size.heads, size.head_width)


def _fused_attention(net: SeededNet, x: str, size: EncoderSize) -> str:
    """Attention with one projection for Q, K and V, and the query scaled."""
    tokens = size.patches + 1
    qkv = _reshape(net, net.linear(x, size.width, 3 * size.width), 1, tokens, 3, size.heads, size.head_width)
    qkv = net.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    query, keys, values = (net.op("Gather", qkv, net.const(part, np.int64), axis=0) for part in range(3))
    query = net.op("Mul", query, net.const(size.head_width**-0.5))
    scores = net.op("MatMul", query, net.op("Transpose", keys, perm=[0, 1, 3, 2]))
    return _merge_heads(net, net.op("MatMul", net.op("Softmax", scores, axis=-1), values), tokens, size)


def _merge_heads(net: SeededNet, context: str, tokens: int, size: EncoderSize) -> str:
    context = net.op("Transpose", context, perm=[0, 2, 1, 3])
    return net.linear(_reshape(net, context, 1, tokens, size.width), size.width, size.width)


def _feed_forward(net: SeededNet, x: str, gelu: Gelu, size: EncoderSize) -> str:
    form = {"erf": _gelu_erf, "tanh": _gelu_tanh}[gelu]
    wide = form(net, net.linear(x, size.width, size.hidden, gain=1.5))
    return net.linear(wide, size.hidden, size.width)


def _gelu_erf(net: SeededNet, x: str) -> str:
    """x * (1 + erf(x / sqrt(2))) * 0.5"""
    erf = net.op("Erf", net.op("Div", x, net.const(np.sqrt(2))))
    return net.op("Mul", net.op("Mul", x, net.op("Add", erf, net.const(1.0))), net.const(0.5))


def _gelu_tanh(net: SeededNet, x: str) -> str:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))"""
    cube = net.op("Mul", net.op("Pow", x, net.const(3.0)), net.const(0.044715))
    inner = net.op("Mul", net.op("Add", x, cube), net.const(np.sqrt(2 / np.pi)))
    outer = net.op("Add", net.op("Tanh", inner), net.const(1.0))
    return net.op("Mul", net.op("Mul", x, net.const(0.5)), outer)


def _layer_norm(net: SeededNet, x: str, width: int) -> str:
    scale, bias = net.const(net.rng.uniform(0.6, 1.4, width)), net.normal((width,), 0.1)
    return net.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _reshape(net: SeededNet, x: str, *shape: int) -> str:
    return net.op("Reshape", x, net.const(shape, np.int64))
