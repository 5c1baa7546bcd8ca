"""`intact convert`: both forms of one model, and what is refused."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from intact.cli.main import app
from intact.errors import SettingsError
from intact.model import io
from intact.rules.quantized.families import conversion
from intact.runtime import ort_cpu
from tests.builder import Net
from tests.kernels import exact
from tests.rules.proof.harness import integers

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (1, 8, 6, 6)).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    net = Net()
    grid = np.float32(0.05), np.uint8(120)
    real = net.dequantize(net.quantize("x", *grid), *grid)
    weight = net.dequantize(integers(RNG, np.int8, (8, 8, 3, 3)) // np.int8(8), 0.01, np.int8(0))
    conv = net.dequantize(net.quantize(net.op("Conv", real, weight, pads=[1, 1, 1, 1]), *grid), *grid)
    pooled = net.dequantize(net.quantize(net.op("MaxPool", conv, kernel_shape=[2, 2]), *grid), *grid)
    y = net.dequantize(net.quantize(net.op("Sigmoid", pooled), 1 / 256, np.uint8(0)), 1 / 256, np.uint8(0))
    path = tmp_path / "model.onnx"
    io.save(net.model({"x": X}, y), path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def ops(path):
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def outputs(path):
    return next(iter(ort_cpu.Session(exact(io.load(path))).run({"x": X}).values()))


def test_a_model_goes_to_qlinear_and_back(model, tmp_path):
    there, back = tmp_path / "qlinear.onnx", tmp_path / "qdq.onnx"
    assert run(model, "--to", "qlinear", "-o", there).exit_code == 0
    assert ops(there) == {
        "QuantizeLinear": 1,
        "QLinearConv": 1,
        "MaxPool": 1,
        "QLinearSigmoid": 1,
        "DequantizeLinear": 1,
    }
    assert run(there, "--to", "qdq", "-o", back).exit_code == 0
    assert ops(back) == ops(model)
    # A step of the convolution, 0.05, is at most a quarter of that after the Sigmoid; each may round once more.
    for path in (there, back):
        assert np.abs(outputs(path) - outputs(model)).max() <= 0.05 / 4 + 1 / 256


def test_the_result_lists_rules_with_their_claims(model, tmp_path):
    result = run(model, "--to", "qlinear", "-o", tmp_path / "out.onnx", "--json", "--quiet")
    found = {row["rule"]: row["exactness"] for row in json.loads(result.stdout)["rules"]}
    assert found["conv_to_qlinear"] == "within one step"
    assert found["dequantize_after_move"] == "exact"


@pytest.mark.parametrize("form", [None, "float", "QDQ"])
def test_a_form_that_does_not_exist_is_refused_with_those_that_do(form):
    with pytest.raises(SettingsError, match="unknown form") as caught:
        conversion(form)
    assert "qdq, qlinear" in caught.value.text()


def test_a_file_that_intact_did_not_write_is_not_replaced(model, tmp_path):
    taken = tmp_path / "taken.onnx"
    taken.write_bytes(b"mine")
    assert run(model, "--to", "qdq", "-o", taken).exit_code != 0
    assert taken.read_bytes() == b"mine"


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_an_operator_with_a_constant_added_before_its_grid_becomes_one_on_integers(op, tmp_path):
    net, grid = Net(), (np.float32(0.05), np.uint8(120))
    shape = (8, 8) if op == "Conv" else (6, 4)
    weight = net.dequantize(integers(RNG, np.int8, (*shape, 1, 1) if op == "Conv" else shape), 0.002, np.int8(0))
    real = net.op(op, net.dequantize(net.quantize("x", *grid), *grid), weight)
    added = net.op("Add", real, np.ones((8, 1, 1) if op == "Conv" else 4, np.float32))
    path, there = tmp_path / "model.onnx", tmp_path / "qlinear.onnx"
    io.save(net.model({"x": X}, net.quantize(added, *grid)), path)
    assert run(path, "--to", "qlinear", "-o", there).exit_code == 0
    assert not {"MatMul", "Conv", "Add"} & set(ops(there))
    assert np.abs(outputs(path).astype(int) - outputs(there)).max() <= 1


def test_converting_twice_changes_nothing(tmp_path):
    """Not even a domain that is no longer used, or the shape of a scale."""
    net, one = Net(), (np.array([0.05], np.float32), np.array([120], np.uint8))
    weight = integers(RNG, np.int8, (8, 8, 1, 1)), np.float32(0.01), np.int8(0)
    q = net.op("QLinearConv", "x", *one, *weight, *one)
    y = net.op("QLinearSigmoid", q, *one, np.float32(1 / 256), np.uint8(0), _domain="com.microsoft")
    given, once, twice = (tmp_path / name for name in ("given.onnx", "once.onnx", "twice.onnx"))
    io.save(net.model({"x": integers(RNG, np.uint8, (1, 8, 6, 6))}, y), given)
    assert run(given, "--to", "qdq", "-o", once).exit_code == 0
    assert run(once, "--to", "qdq", "-o", twice).exit_code == 0
    assert "QLinearConv" not in ops(once) and once.read_bytes() == twice.read_bytes()
