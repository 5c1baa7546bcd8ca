"""Products of int8 activations with uint8 weights, which ONNX Runtime cannot multiply: built with the same integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from intact.api.build import build
from intact.api.convert import convert
from intact.model import io
from intact.numbers import encoding
from intact.numbers.encoding import Encoding
from tests.builder import Net

RNG = np.random.default_rng(3)
X_SCALE, W_SCALE, Y_SCALE = np.float32(0.125), np.float32(0.25), np.float32(16.0)
X_ZERO, W_ZERO, Y_ZERO = np.int8(-7), np.uint8(131), np.int8(5)
X = RNG.integers(-128, 128, (6, 1, 16)).astype(np.int8)
W = RNG.integers(0, 256, (16, 4)).astype(np.uint8)


def saved(path):
    net = Net()
    y = net.op("QLinearMatMul", "x", X_SCALE, X_ZERO, W, W_SCALE, W_ZERO, Y_SCALE, Y_ZERO)
    io.save(net.model({"x": X[0]}, y), path)
    return path


def by_hand(x):
    sums = (x.astype(np.int64) - int(X_ZERO)) @ (W.astype(np.int64) - int(W_ZERO))
    grid = Encoding("int8", Y_SCALE, np.array(int(Y_ZERO)))
    return encoding.quantize(sums * (X_SCALE * W_SCALE), grid, precision=np.float64)


def results(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.stack([session.run(None, {session.get_inputs()[0].name: x})[0] for x in X])


def test_onnx_runtime_does_not_run_it_as_it_is(tmp_path):
    with pytest.raises(Exception, match="Could not find an implementation for QLinearMatMul"):
        results(saved(tmp_path / "given.onnx"))


def test_it_is_built_with_the_same_integers(tmp_path):
    built = build(saved(tmp_path / "given.onnx"), output=tmp_path / "out", device="cpu")
    assert built.verdict == "good" and all(row.identical for row in built.accuracy)
    np.testing.assert_array_equal(results(tmp_path / "out" / "model.onnx"), by_hand(X))
    assert "QLinearMatMul" in [node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node]


def test_its_portable_form_computes_them_too(tmp_path):
    convert(saved(tmp_path / "given.onnx"), output=tmp_path / "qdq.onnx", to="qdq")
    np.testing.assert_array_equal(results(tmp_path / "qdq.onnx"), by_hand(X))
