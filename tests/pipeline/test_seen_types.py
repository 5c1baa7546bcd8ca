"""Tensors behind operators of other domains: their types come from running the model once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.api.build import build
from intact.model import io, normalize, query
from intact.pipeline import seen_types
from tests.builder import from_text

RNG = np.random.default_rng(0)


def weight(*shape):
    return (RNG.standard_normal(shape) * 0.2).astype(np.float32)


WEIGHTS = {
    "qkv": weight(16, 48),
    "bias": weight(48),
    "w": weight(16, 16),
    "b": weight(16),
    "g": np.ones(16, np.float32),
}
FUSED = {
    "Attention": "a = com.microsoft.Attention <num_heads = 2> (x, qkv, bias)",
    "SkipLayerNormalization": "a, m, v, sum = com.microsoft.SkipLayerNormalization (x, x, g, b)",
    "FusedMatMul": "a = com.microsoft.FusedMatMul <alpha = 0.5> (x, w)",
    "BiasGelu": "a = com.microsoft.BiasGelu (x, b)",
    "FastGelu": "a = com.microsoft.FastGelu (x)",
    "MultiHeadAttention": "a = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)",
}


def fused(body, sizes="1, 8, 16"):
    return from_text(f"(float[{sizes}] x) => (float[{sizes}] y)", f"{body}  y = MatMul(a, w)", weights=WEIGHTS)


@pytest.mark.parametrize("body", FUSED.values(), ids=FUSED)
def test_what_stands_behind_a_fused_operator_is_quantized(body, tmp_path):
    io.save(fused(body), tmp_path / "fused.onnx")
    built = build(tmp_path / "fused.onnx", output=tmp_path / "out", device="cpu", precision="uint8")
    stage = next(stage for stage in built.stages if stage.name == "quantize")
    assert stage.details["nodes_quantized"] >= 1 and built.verdict == "good"


def behind(model):
    found = next(node for node in model.graph if node.op_type == "MatMul").inputs[0]
    return found.dtype, None if found.shape is None else tuple(found.shape)


def test_a_shape_is_that_of_the_run_where_the_inputs_have_one():
    model = normalize.normalize(fused(FUSED["Attention"]))
    assert behind(model)[0] is None
    assert seen_types.complete(model) == ()
    assert behind(model) == (ir.DataType.FLOAT, (1, 8, 16))


def test_free_dimensions_leave_the_rank():
    model = normalize.normalize(fused(FUSED["Attention"], "N, S, 16"))
    seen_types.complete(model)
    value = next(node for node in model.graph if node.op_type == "MatMul").inputs[0]
    assert value.dtype == ir.DataType.FLOAT and query.rank(value) == 3 and query.static_shape(value) is None


def test_a_model_that_does_not_run_is_left_with_a_warning():
    model = normalize.normalize(fused("a = com.microsoft.NoSuchThing (x)"))
    (warning,) = seen_types.complete(model)
    assert "types of a" in warning and behind(model)[0] is None
