"""A decoder as ONNX Runtime's optimizer leaves it is built for CPU and NPU: its products are quantized."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import intact
from tests.builder import from_text

RNG = np.random.default_rng(0)
WORDS, WIDTH, ROWS, HEADS, SHARED, INNER = 50, 64, 12, 4, 2, 96
HEAD = WIDTH // HEADS
ANGLES = np.outer(np.arange(32), 100.0 ** (-np.arange(HEAD // 2) / (HEAD // 2)))


def matrix(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


WEIGHTS = {
    "words": RNG.standard_normal((WORDS, WIDTH)).astype(np.float32),
    "g1": np.ones(WIDTH, np.float32),
    "g2": RNG.uniform(0.5, 1.5, WIDTH).astype(np.float32),
    "g3": RNG.uniform(0.5, 1.5, WIDTH).astype(np.float32),
    "wq": matrix(WIDTH, WIDTH),
    "wk": matrix(WIDTH, SHARED * HEAD),
    "wv": matrix(WIDTH, SHARED * HEAD),
    "wo": matrix(WIDTH, WIDTH),
    "gate": matrix(WIDTH, INNER),
    "up": matrix(WIDTH, INNER),
    "down": matrix(INNER, WIDTH),
    "head": matrix(WIDTH, WORDS),
    "cosines": np.cos(ANGLES).astype(np.float32),
    "sines": np.sin(ANGLES).astype(np.float32),
    "one": np.array(1),
    "axes": np.array([1]),
    "at": np.array(1),
}
TEXT = f"""
    e = Gather(words, ids)
    n = SimplifiedLayerNormalization <epsilon = 1e-5> (e, g1)
    q = MatMul(n, wq) k = MatMul(n, wk) v = MatMul(n, wv)
    live = ReduceSum <keepdims = 0> (mask, axes) before = Sub(live, one) lengths = Cast <to = 6> (before)
    sizes = Shape(mask) size = Gather(sizes, at) total = Cast <to = 6> (size)
    a, pk, pv = com.microsoft.GroupQueryAttention <num_heads = {HEADS}, kv_num_heads = {SHARED}, do_rotary = 1>
        (q, k, v, "", "", lengths, total, cosines, sines)
    o = MatMul(a, wo)
    m, "", "", r = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (e, o, g2)
    g = MatMul(m, gate) u = MatMul(m, up) s = Sigmoid(g) w = Mul(g, s) h = Mul(w, u) d = MatMul(h, down)
    f = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (r, d, g3)
    logits = MatMul(f, head)
"""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    signature = f"(int64[1,{ROWS}] ids, int64[1,{ROWS}] mask) => (float[1,{ROWS},{WORDS}] logits)"
    model = from_text(signature, TEXT, weights=WEIGHTS)
    model.opset_imports["com.microsoft"] = 1
    path = tmp_path_factory.mktemp("decoder") / "m.onnx"
    ir.save(model, path)
    return path


def quantized(path):
    """The nodes of a quantized model that read what a DequantizeLinear gives."""
    for node in ir.load(path).graph:
        producers = [value.producer() for value in node.inputs if value is not None]
        if any(one is not None and one.op_type == "DequantizeLinear" for one in producers):
            yield node.name, node.op_type


@pytest.mark.parametrize(
    ("device", "precision", "least"), [("cpu", "uint8", 25), pytest.param("qnn", "w8a16", 30, marks=pytest.mark.qnn)]
)
def test_a_fused_decoder_is_quantized_and_whole(decoder, device, precision, least, tmp_path):
    rows = {"ids": RNG.integers(0, WORDS, (24, 1, ROWS)), "mask": np.ones((24, 1, ROWS), np.int64)}
    built = intact.build(decoder, data=rows, device=device, precision=precision, output=tmp_path / "out", effort="fast")
    assert built.verdict == "good"
    assert min(row.sqnr_db for row in built.accuracy if row.form == "compiled") > least
    products = [name for name, op in quantized(tmp_path / "out" / "model.qdq.onnx") if op == "MatMul"]
    assert len(products) >= 8, "seven layers and the head"
    assert device == "cpu" or not built.placement.cpu_nodes
