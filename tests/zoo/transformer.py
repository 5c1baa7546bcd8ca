"""Encoders as torch exports them: BERT (post-norm, masked) and ViT (pre-norm, class token)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto

from tests.zoo.net import SeededNet

Gelu = Literal["erf", "tanh"]

HEADS = 4
HEAD_WIDTH = 16
WIDTH = HEADS * HEAD_WIDTH
HIDDEN = 2 * WIDTH
LAYERS = 2

TOKENS = 16
VOCABULARY = 96

IMAGE = 32
PATCH = 8
PATCHES = (IMAGE // PATCH) ** 2


def bert(gelu: Gelu = "erf", seed: int = 2) -> onnx.ModelProto:
    """A BERT encoder with an additive mask, and a classifier on its first token."""
    net = SeededNet("bert", seed)
    ids = net.input("input_ids", (1, TOKENS), TensorProto.INT64)
    mask = net.input("attention_mask", (1, TOKENS), TensorProto.INT64)
    types = net.input("token_type_ids", (1, TOKENS), TensorProto.INT64)

    bias = _additive_mask(net, mask)
    x = _embeddings(net, ids, types)
    for _ in range(LAYERS):
        x = _layer_norm(net, net.op("Add", _attention(net, x, bias), x))
        x = _layer_norm(net, net.op("Add", _feed_forward(net, x, gelu), x))

    first = net.op("Gather", x, net.const(0, np.int64), axis=1)
    pooled = net.op("Tanh", net.gemm(first, WIDTH, WIDTH))
    net.output(x, "last_hidden_state", (1, TOKENS, WIDTH))
    net.output(net.gemm(pooled, WIDTH, 4), "logits", (1, 4))
    return net.checked()


def vit(gelu: Gelu = "tanh", seed: int = 3) -> onnx.ModelProto:
    """A vision transformer: Conv patches, class token, pre-norm blocks with one QKV projection."""
    net = SeededNet("vit", seed)
    x = _patches(net, net.input("image", (1, 3, IMAGE, IMAGE)))
    for _ in range(LAYERS):
        x = net.op("Add", x, _fused_attention(net, _layer_norm(net, x)))
        x = net.op("Add", x, _feed_forward(net, _layer_norm(net, x), gelu))
    token = net.op("Gather", _layer_norm(net, x), net.const(0, np.int64), axis=1)
    net.output(net.gemm(token, WIDTH, 10), "logits", (1, 10))
    return net.checked()


def _additive_mask(net: SeededNet, mask: str) -> str:
    """(1 - mask) * -10000, shaped [batch, 1, 1, keys]."""
    mask = net.op("Unsqueeze", mask, net.const([1], np.int64))
    mask = net.op("Unsqueeze", mask, net.const([2], np.int64))
    live = net.op("Cast", mask, to=TensorProto.FLOAT)
    return net.op("Mul", net.op("Sub", net.const(1.0), live), net.const(-10000.0))


def _embeddings(net: SeededNet, ids: str, types: str) -> str:
    words = net.op("Gather", net.normal((VOCABULARY, WIDTH), 0.6), ids)
    kinds = net.op("Gather", net.normal((2, WIDTH), 0.3), types)
    positions = net.op("Gather", net.normal((2 * TOKENS, WIDTH), 0.3), net.const([range(TOKENS)], np.int64))
    return _layer_norm(net, net.op("Add", net.op("Add", words, kinds), positions))


def _patches(net: SeededNet, image: str) -> str:
    scale = net.spread(WIDTH)[:, None, None, None] / np.sqrt(3 * PATCH**2)
    weight, bias = net.normal((WIDTH, 3, PATCH, PATCH), scale), net.normal((WIDTH,), 0.1)
    x = net.op("Conv", image, weight, bias, kernel_shape=[PATCH, PATCH], strides=[PATCH, PATCH])
    x = net.op("Transpose", _reshape(net, x, 1, WIDTH, PATCHES), perm=[0, 2, 1])
    x = net.op("Concat", net.normal((1, 1, WIDTH), 0.5), x, axis=1)
    return net.op("Add", x, net.normal((1, PATCHES + 1, WIDTH), 0.3))


def _attention(net: SeededNet, x: str, bias: str) -> str:
    """Attention with a projection each for Q, K and V, scores divided by sqrt(head width) and masked."""
    query = net.op("Transpose", _heads(net, x), perm=[0, 2, 1, 3])
    keys = net.op("Transpose", _heads(net, x), perm=[0, 2, 3, 1])
    values = net.op("Transpose", _heads(net, x), perm=[0, 2, 1, 3])
    scores = net.op("Div", net.op("MatMul", query, keys), net.const(np.sqrt(HEAD_WIDTH)))
    weights = net.op("Softmax", net.op("Add", scores, bias), axis=-1)
    return _merge_heads(net, net.op("MatMul", weights, values), TOKENS)


def _heads(net: SeededNet, x: str) -> str:
    return _reshape(net, net.linear(x, WIDTH, WIDTH), 1, TOKENS, HEADS, HEAD_WIDTH)


def _fused_attention(net: SeededNet, x: str) -> str:
    """Attention with one projection for Q, K and V, and the query scaled."""
    tokens = PATCHES + 1
    qkv = _reshape(net, net.linear(x, WIDTH, 3 * WIDTH), 1, tokens, 3, HEADS, HEAD_WIDTH)
    qkv = net.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    query, keys, values = (net.op("Gather", qkv, net.const(part, np.int64), axis=0) for part in range(3))
    query = net.op("Mul", query, net.const(HEAD_WIDTH**-0.5))
    scores = net.op("MatMul", query, net.op("Transpose", keys, perm=[0, 1, 3, 2]))
    return _merge_heads(net, net.op("MatMul", net.op("Softmax", scores, axis=-1), values), tokens)


def _merge_heads(net: SeededNet, context: str, tokens: int) -> str:
    context = net.op("Transpose", context, perm=[0, 2, 1, 3])
    return net.linear(_reshape(net, context, 1, tokens, WIDTH), WIDTH, WIDTH)


def _feed_forward(net: SeededNet, x: str, gelu: Gelu) -> str:
    form = {"erf": _gelu_erf, "tanh": _gelu_tanh}[gelu]
    return net.linear(form(net, net.linear(x, WIDTH, HIDDEN, gain=1.5)), HIDDEN, WIDTH)


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


def _layer_norm(net: SeededNet, x: str) -> str:
    scale, bias = net.const(net.rng.uniform(0.6, 1.4, WIDTH)), net.normal((WIDTH,), 0.1)
    return net.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)


def _reshape(net: SeededNet, x: str, *shape: int) -> str:
    return net.op("Reshape", x, net.const(shape, np.int64))
