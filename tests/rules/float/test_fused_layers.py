"""Operators that ONNX Runtime fuses are taken apart, with the numbers of its own kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching.rewriter import apply
from intact.model import shapes
from intact.rules.discovery import rules_of
from intact.rules.float import fused_attention, fused_layers
from intact.runtime import ort_cpu
from tests.builder import contrib_model
from tests.model.small import ops

RULES = (*rules_of(fused_layers), *rules_of(fused_attention))
TOLERANCE = 2e-6
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


WEIGHTS = {
    "w8": floats(8, 8),
    "v8": floats(8),
    "g8": 1 + 0.1 * floats(8),
    "words": floats(20, 8),
    "places": floats(9, 8),
    "kinds": floats(2, 8),
    "conv": floats(4, 3, 3, 3),
    "qkv": 0.5 * floats(8, 24),
    "qkv_bias": floats(24),
    "uneven": 0.5 * floats(8, 20),
    "uneven_bias": floats(20),
    "past": floats(2, 1, 2, 3, 4),
    "key_past": floats(1, 2, 3, 4),
    "value_past": floats(1, 2, 3, 4),
    "key_heads": floats(1, 2, 7, 4),
    "value_heads": floats(1, 2, 7, 4),
    "along_rows": np.array([1]),
}

X = "(float[2,5,8] x"
ATTENTION = "com.microsoft.Attention <num_heads = 2"
HEADS = "com.microsoft.MultiHeadAttention <num_heads = 2"

# Each with its inputs, its outputs, and the operators that come instead of it.
CASES = {
    "gelu": (X, "y = com.microsoft.Gelu(x)", ["Gelu"]),
    "gelu with a bias": (X, "y = com.microsoft.BiasGelu(x, v8)", ["Add", "Gelu"]),
    "fast gelu": (X, "y = com.microsoft.FastGelu(x)", ["Gelu"]),
    "fast gelu with a bias": (X, "y = com.microsoft.FastGelu(x, v8)", ["Add", "Gelu"]),
    "quick gelu": (X, "y = com.microsoft.QuickGelu <alpha = 1.5> (x)", ["Mul", "Sigmoid", "Mul"]),
    "product": (X, "y = com.microsoft.FusedMatMul <alpha = 0.3, transB = 1> (x, w8)", ["Transpose", "MatMul", "Mul"]),
    "product of turned": (X, "y = com.microsoft.FusedMatMul <transA = 1> (x, x)", ["Transpose", "MatMul"]),
    "norm": (X, "y = com.microsoft.SkipLayerNormalization(x, x, g8, v8)", ["Add", "LayerNormalization"]),
    "norm with a bias": (
        X,
        "y = com.microsoft.SkipLayerNormalization <epsilon = 0.1> (x, x, g8, v8, v8)",
        ["Add", "Add", "LayerNormalization"],
    ),
    "norm and sum": (
        X,
        'n, "", "", s = com.microsoft.SkipLayerNormalization(x, x, g8) y = Mul(n, s)',
        ["Add", "LayerNormalization", "Mul"],
    ),
    "embedding": (
        "(int32[2,5] i, int32[2,5] s, int32[2,5] m",
        "n, k = com.microsoft.EmbedLayerNormalization(i, s, words, places, kinds, g8, v8, m) y = Identity(n)",
        ["Gather", "Gather", "Add", "Add", "LayerNormalization", "ReduceSum", "Identity"],
    ),
    "embedding at places": (
        "(int32[2,5] i, int32[2,5] p",
        'n, k = com.microsoft.EmbedLayerNormalization(i, "", words, places, "", g8, v8, "", p) y = Identity(n)',
        ["Gather", "Gather", "Add", "LayerNormalization", "Identity"],
    ),
    "convolution": (
        "(float[1,3,6,6] x, float[1,4,4,4] z",
        'y = com.microsoft.FusedConv <activation = "Relu"> (x, conv, "", z)',
        ["Conv", "Add", "Relu"],
    ),
    "convolution with ends": (
        "(float[1,3,6,6] x",
        'y = com.microsoft.FusedConv <activation = "Clip", activation_params = [-0.5, 2.0]> (x, conv)',
        ["Conv", "Clip"],
    ),
    "convolution that leaks": (
        "(float[1,3,6,6] x",
        'y = com.microsoft.FusedConv <activation = "LeakyRelu", activation_params = [0.2]> (x, conv)',
        ["Conv", "LeakyRelu"],
    ),
    "matrix": (
        "(float[5,8] x",
        'y = com.microsoft.FusedGemm <activation = "LeakyRelu", activation_alpha = 0.2, transB = 1> (x, w8, v8)',
        ["Gemm", "LeakyRelu"],
    ),
}
SELF = ["Mul", "Softmax", "Reshape", *["MatMul"] * 5, *["Add"] * 3, *["Reshape"] * 3, *["Transpose"] * 5]
PADDED = ["Cast", "Unsqueeze", "Sub", "Mul", "Add"]
ATTENTIONS = {
    "attention": (X, f"y = {ATTENTION}> (x, qkv, qkv_bias)", SELF),
    "attention of lengths": (
        X + ", int32[2] n",
        f"y = {ATTENTION}> (x, qkv, qkv_bias, n)",
        [*SELF, "Mul", "Unsqueeze", "Sub", "Clip", *PADDED],
    ),
    "attention of lengths that are sums": (
        X + ", int32[2,5] m",
        f"n = ReduceSum <keepdims = 0> (m, along_rows) y = {ATTENTION}> (x, qkv, qkv_bias, n)",
        [*SELF, "ReduceSum", "Mul", "Unsqueeze", "Sub", "Clip", *PADDED],
    ),
    "attention of a mask": (X + ", int32[2,5] m", f"y = {ATTENTION}> (x, qkv, qkv_bias, m)", [*SELF, *PADDED]),
    "attention of a square mask": (
        X + ", int32[2,5,5] m",
        f"y = {ATTENTION}> (x, qkv, qkv_bias, m)",
        [*SELF, *PADDED],
    ),
    "attention with a scale": (X, f"y = {ATTENTION}, scale = 0.3> (x, qkv, qkv_bias)", SELF),
    "attention that looks back": (X, f"y = {ATTENTION}, unidirectional = 1> (x, qkv, qkv_bias)", [*SELF, "Add"]),
    "attention that looks back on live keys": (
        X + ", int32[2,5] m",
        f"y = {ATTENTION}, unidirectional = 1> (x, qkv, qkv_bias, m)",
        [*SELF, *PADDED, "Add"],
    ),
    "attention with a bias of scores": (
        X + ", float[2,2,5,5] b",
        f'y = {ATTENTION}> (x, qkv, qkv_bias, "", "", b)',
        [*SELF, "Add"],
    ),
    "attention of uneven widths": (
        X,
        f"y = {ATTENTION}, qkv_hidden_sizes = [8, 8, 4]> (x, uneven, uneven_bias)",
        SELF,
    ),
    "attention with a past": (
        "(float[1,5,8] x",
        f'a, p = {ATTENTION}, unidirectional = 1> (x, qkv, qkv_bias, "", past) s = ReduceSum(p) y = Add(a, s)',
        [*SELF, *["Gather", "Concat"] * 2, "Add", "Unsqueeze", "Unsqueeze", "Concat", "ReduceSum", "Add"],
    ),
}
CROSS = ["Mul", "Softmax", "Reshape", *["MatMul"] * 2, *["Reshape"] * 3, *["Transpose"] * 5]
MULTIPLE = {
    "heads": (X + ", float[2,7,8] k, float[2,7,8] v", f"y = {HEADS}> (x, k, v)", CROSS),
    "heads with a bias": (
        X + ", float[2,7,8] k, float[2,7,8] v",
        f"y = {HEADS}> (x, k, v, qkv_bias)",
        [*CROSS, *["Add"] * 3],
    ),
    "heads of a mask": (
        X + ", float[2,7,8] k, float[2,7,8] v, int32[2,7] m",
        f'y = {HEADS}> (x, k, v, "", m)',
        [*CROSS, *PADDED],
    ),
    "heads with a bias of scores": (
        X + ", float[2,7,8] k, float[2,7,8] v, float[1,2,5,7] b",
        f'y = {HEADS}> (x, k, v, "", "", b)',
        [*CROSS, "Add"],
    ),
    "heads that look back": (
        X + ", float[2,5,8] k, float[2,5,8] v",
        f"y = {HEADS}, unidirectional = 1> (x, k, v)",
        [*CROSS, "Add"],
    ),
    "heads with a past": (
        "(float[1,5,8] x, float[1,7,8] k, float[1,7,8] v",
        f'a, p, q = {HEADS}> (x, k, v, "", "", "", key_past, value_past) s = ReduceSum(p) t = ReduceSum(q) '
        "u = Add(s, t) y = Add(a, u)",
        [*CROSS, *["Concat", "ReduceSum", "Add"] * 2],
    ),
    "heads that are apart": ("(float[1,5,8] x", f"y = {HEADS}> (x, key_heads, value_heads)", None),
}


def given(case: tuple[str, str, object]) -> ir.Model:
    signature, body, _ = case
    model = contrib_model(signature, body, WEIGHTS)
    shapes.infer_shapes(model)
    return model


def feeds(model: ir.Model) -> dict[str, np.ndarray]:
    limits = {"i": 20, "s": 2, "p": 9, "m": 2}
    rows = {}
    for value in model.graph.inputs:
        shape = value.shape.numpy()
        if value.dtype == ir.DataType.FLOAT:
            rows[value.name] = floats(*shape)
        elif value.name == "n":
            rows["n"] = np.array([3, 5], np.int32)
        else:
            rows[value.name] = RNG.integers(0, limits[value.name], shape).astype(np.int32)
        if value.name == "m":
            rows["m"][..., 0] = 1
    return rows


FREE = {
    "attention": ("(float[B,S,8] x, int32[B,S] m", f"y = {ATTENTION}> (x, qkv, qkv_bias, m)"),
    "heads": (
        "(float[B,S,8] x, float[B,T,8] k, float[B,T,8] v, int32[B,T] m",
        f"y = {HEADS}> (x, k, v, qkv_bias, m)",
    ),
}


@pytest.mark.parametrize("name", FREE)
def test_attention_of_free_sizes_is_taken_apart_where_no_place_counts(name):
    case = (*FREE[name], None)
    after = apply(given(case), RULES)
    assert len(after.applications) == 1 and name.title() not in ops(after.model)
    rows = {"x": floats(2, 5, 8), "k": floats(2, 7, 8), "v": floats(2, 7, 8)}
    rows["m"] = np.array([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]], np.int32)
    rows["m"] = rows["m"] if name == "attention" else np.tile(np.int32([1, 1, 0, 1, 0, 1, 1]), (2, 1))
    row = {value.name: rows[value.name] for value in after.model.graph.inputs}
    expected, found = ort_cpu.run(given(case), row)["y"], ort_cpu.run(after.model, row)["y"]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("name", [*CASES, *ATTENTIONS, *MULTIPLE])
def test_a_fused_operator_is_taken_apart_and_computes_the_same(name):
    case = {**CASES, **ATTENTIONS, **MULTIPLE}[name]
    before, row = given(case), feeds(given(case))
    after = apply(given(case), RULES)
    assert len(after.applications) == 1
    assert case[2] is None or sorted(ops(after.model)) == sorted(case[2])
    assert not any(node.domain for node in after.model.graph)
    np.testing.assert_allclose(
        ort_cpu.run(after.model, row)["y"], ort_cpu.run(before, row)["y"], atol=TOLERANCE, rtol=0
    )


REFUSED = {
    "a mean that is used": (
        X,
        "n, y = com.microsoft.SkipLayerNormalization(x, x, g8)",
        "its mean or deviation is used",
    ),
    "an activation that no operator is": (
        "(float[1,3,6,6] x",
        'y = com.microsoft.FusedConv <activation = "Wiggle"> (x, conv)',
        "its activation is 'Wiggle'",
    ),
    "a computed weight": (X + ", float[8,24] w", f"y = {ATTENTION}> (x, w, qkv_bias)", "its weight or its bias"),
    "free sizes": (
        "(float[B,S,8] x",
        f"y = {ATTENTION}, unidirectional = 1> (x, qkv, qkv_bias)",
        "it hides keys by their places, of which the number is not known",
    ),
    "turned positions": (X, f"y = {ATTENTION}, do_rotary = 1> (x, qkv, qkv_bias)", "it turns positions"),
    "a mask of four dimensions": (
        X + ", int32[2,1,9,9] m",
        f"y = {ATTENTION}> (x, qkv, qkv_bias, m)",
        "its mask is neither lengths",
    ),
    "ends and starts instead of lengths": (
        X + ", int32[4] n",
        f"y = {ATTENTION}> (x, qkv, qkv_bias, n)",
        "its mask holds other numbers than the length of each row",
    ),
    "keys and values in one": (
        X + ", float[2,5,2,2,4] k",
        f"y = {HEADS}> (x, k)",
        "its queries, keys and values are not three tensors",
    ),
    "batches that are turned": (
        X,
        "y = com.microsoft.FusedMatMul <transBatchA = 1> (x, w8)",
        "it turns batches around",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_apart_stays_and_says_why(name):
    signature, body, reason = REFUSED[name]
    result = apply(given((signature, body, None)), RULES)
    assert not result.applications
    assert any(reason in refusal.reason for refusal in result.refusals)
