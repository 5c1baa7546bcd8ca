"""A file that weights are streamed to has the bytes of the message that holds them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.model import io, streamed
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


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "beside"])
def test_outputs_of_a_file_are_told_in_their_order(inside, tmp_path):
    net = Net()
    x = net.op("MatMul", "x", np.ones((8, 40_000), np.float32))
    made = net.model({"x": np.zeros((1, 8), np.float32)}, net.op("Relu", x), net.op("Neg", x), net.op("Abs", x))
    made.graph.doc_string = "what comes behind the outputs"
    path = io.save(made, tmp_path / "m.onnx", external_threshold=1 << 30 if inside else 0)[0]
    assert streamed.outputs_of(path) == [value.name for value in made.graph.outputs]


def test_a_damaged_file_tells_no_outputs(tmp_path):
    whole = io.to_bytes(model(5))
    _, end = streamed._only(whole, streamed._GRAPH)
    for number, content in enumerate([b"", b"\x00", b"no model", *(whole[:size] for size in range(1, end, 7))]):
        (path := tmp_path / f"{number}.onnx").write_bytes(content)
        assert not streamed.outputs_of(path)
