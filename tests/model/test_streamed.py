"""A file that weights are streamed to has the bytes of the message that holds them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.model import io
from tests.builder import Net


def model(*sizes: int) -> ir.Model:
    net, rng = Net(), np.random.default_rng(0)
    x = "x"
    for size in sizes:
        x = net.op("MatMul", x, rng.standard_normal((8, size)).astype(np.float32))
        x = net.op("MatMul", x, rng.standard_normal((size, 8)).astype(np.float32))
    return net.model({"x": np.zeros((1, 8), np.float32)}, net.op("Relu", x))


# Lengths of one to four bytes, tensors just below and above the limit, and one that ends the initializers.
@pytest.mark.parametrize("sizes", [(1,), (300, 5), (5, 300), (40_000, 2, 3), (2, 40_000)])
def test_bytes_are_those_of_the_whole_message(sizes, tmp_path, monkeypatch):
    made = model(*sizes)
    made.graph.doc_string = "what comes behind the initializers"
    monkeypatch.setattr(io, "STREAMED_BYTES", 1_000)
    whole = io.to_bytes(made)
    assert [file.name for file in io.save(made, tmp_path / "m.onnx")] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_bytes() == whole
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_weights_are_never_in_a_message(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(io, "STREAMED_BYTES", 1_000)
    serialize = io._serialize
    monkeypatch.setattr(io, "_serialize", lambda proto: seen.append(serialize(proto)) or seen[-1])
    io.save(model(1_000), tmp_path / "m.onnx")
    assert len(seen[0]) < 2_000 < 32_000 < (tmp_path / "m.onnx").stat().st_size
