"""A product and its bias become the FullyConnected form of an NPU, where that cannot show."""

from __future__ import annotations

import numpy as np
import pytest

from intact.backends import compiling
from intact.rules.discovery import rules_of
from intact.rules.quantized import families, fully_connected
from intact.targets.registry import load_target
from tests.builder import Net
from tests.rules.proof.harness import fired, integers, refused

U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-40, 40, (12, 10)).astype(I8)
X, MIDDLE, RESULT = (F32(0.02), U8(128)), (F32(0.5), U8(128)), (F32(0.5), U8(128))
BYTES, STACK = np.zeros((7, 12), U8), np.zeros((2, 3, 12), U8)
BIAS = integers(RNG, U8, (10,)), F32(0.05), U8(128)
FLOATS = np.arange(10, dtype=F32)
NARROW = F32(0.01), U8(128)


def connected(*, middle=MIDDLE, like=BYTES, bias=BIAS):
    net = Net()
    product = net.op("MatMul", net.dequantize("a", *X), net.dequantize(WEIGHT, F32(0.01), I8(0)))
    again = product if middle is None else net.dequantize(net.quantize(product, *middle), *middle)
    added = net.dequantize(*bias) if isinstance(bias, tuple) else bias
    return net.model({"a": like}, net.quantize(net.op("Add", again, added), *RESULT))


CONNECTED = [*["DequantizeLinear"] * 3, "Gemm", "QuantizeLinear"]
STACKED = [*CONNECTED, *["Reshape", "QuantizeLinear", "DequantizeLinear"] * 2]
FIRES = [
    (fully_connected.MatMulToFullyConnected, connected(), CONNECTED),
    (fully_connected.MatMulToFullyConnected, connected(middle=None), CONNECTED),
    (fully_connected.MatMulToFullyConnected, connected(middle=None, bias=FLOATS), CONNECTED),
    (fully_connected.StackToFullyConnected, connected(middle=None, like=STACK), STACKED),
    (fully_connected.StackToFullyConnected, connected(middle=None, like=STACK, bias=FLOATS), STACKED),
]
REFUSES = [
    (fully_connected.MatMulToFullyConnected, connected(like=STACK), "Gemm takes matrices, and the input has rank 3"),
    (fully_connected.MatMulToFullyConnected, connected(middle=NARROW), "but the intermediate grid covers"),
    (
        fully_connected.MatMulToFullyConnected,
        connected(middle=None, bias=FLOATS * F32(1e9)),
        "more than int32 holds",
    ),
    (
        fully_connected.MatMulToFullyConnected,
        connected(bias=np.ones(10, F32)),
        "the bias is not behind a DequantizeLinear",
    ),
    (fully_connected.StackToFullyConnected, connected(middle=None), "the input is a matrix, which Gemm takes as it is"),
    (
        fully_connected.StackToFullyConnected,
        connected(middle=None, like=STACK, bias=np.ones((3, 10), F32)),
        "the bias has shape [3, 10], not one number for each of 10 channels",
    ),
    (
        fully_connected.StackToFullyConnected,
        connected(middle=None, like=STACK, bias=FLOATS * F32(1e9)),
        "the bias is up to 4.5e+13 steps of the accumulator, more than int32 holds",
    ),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_becomes_the_form_of_the_rule(rule, model, left):
    assert sorted(fired(rule(), model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_that_would_change_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    assert (
        {type(rule) for rule in rules_of(fully_connected)} == {row[0] for row in FIRES} == {row[0] for row in REFUSES}
    )


def stack_of_floats():
    """A stack of activations times a weight with one scale for each column, plus a bias, between floats."""
    net = Net()
    left = net.dequantize(net.quantize("x", *X), *X)
    right = net.dequantize(WEIGHT, np.full(10, 0.01, F32), np.zeros(10, I8), axis=1)
    result = net.op("Add", net.op("MatMul", left, right), net.dequantize(*BIAS))
    return net.model({"x": STACK.astype(F32)}, net.dequantize(net.quantize(result, *RESULT), *RESULT))


@pytest.mark.qnn
def test_a_stack_without_a_grid_between_product_and_bias_runs_whole_on_the_npu(tmp_path):
    """As it is given, its weight is dequantized on the CPU, and the product is taken in float."""
    npu = load_target("qnn")
    assert npu.soc is not None
    given, device = stack_of_floats(), compiling.Device("qnn", 300, npu.arch, npu.soc.id)
    connected = families.rewrite(given, npu).model
    before, after = (compiling.compile(model, device, tmp_path).placement for model in (given, connected))
    assert "DequantizeLinear" in {node.op for node in before.cpu_nodes}
    assert after.npu_nodes and not after.cpu_nodes
