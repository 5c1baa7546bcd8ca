"""Products become MatMulIntegerToFloat or MatMulInteger where the target's table has them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from intact.matching import rewriter
from intact.rules.discovery import rules_of
from intact.rules.quantized import matmul_integer
from intact.runtime import ort_cpu
from tests.builder import Net
from tests.rules.proof.harness import fired, refused
from tests.rules.proof.interpreter import evaluate

MICROSOFT = "com.microsoft"
U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-40, 40, (12, 10)).astype(I8)
X, RESULT = (F32(0.02), U8(128)), (F32(0.5), U8(128))
BYTES, STEP = np.zeros((7, 12), U8), np.full((), 0.01, F32)
FLOATS, COLUMNS = np.arange(10, dtype=F32), np.full(10, 0.01, F32)


def qdq(*, bias=None, like=BYTES, quantize=False, weight=WEIGHT, a_zero=X[1]):
    net = Net()
    product = net.op(
        "MatMul", net.dequantize("a", X[0], a_zero), net.dequantize(weight, F32(0.01), weight.dtype.type(0))
    )
    result = product if bias is None else net.op("Add", bias, product)
    return net.model({"a": like}, net.quantize(result, *RESULT) if quantize else result)


def to_float(bias):
    net = Net()
    inputs = "a", WEIGHT, X[0], F32(0.01), X[1], I8(0)
    model = net.model({"a": BYTES}, net.op("Add", net.op("MatMulIntegerToFloat", *inputs, _domain=MICROSOFT), bias))
    product, added = (node.outputs[0] for node in model.graph)
    product.shape, added.shape = ir.Shape([7, 10]), ir.Shape(np.broadcast_shapes((7, 10), bias.shape))
    return model


def scaled(factor=STEP, *, s=STEP, like=BYTES, weight=WEIGHT, b_zero=None, a_zero=None, product=True):
    """MatMulInteger, Cast, Mul by a constant, or by its product with a scale that is computed."""
    net = Net()
    real = net.op("Cast", net.op("MatMulInteger", "a", weight, a_zero, b_zero), to=1)
    return net.model({"a": like, "s": s}, net.op("Mul", real, net.op("Mul", "s", factor) if product else factor))


def dynamic():
    """What a dynamic quantizer writes, with the bias behind it."""
    net = Net()
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"))
    sums = net.op("MatMulInteger", "q", WEIGHT, "z", np.zeros(10, I8))
    scales = np.linspace(0.01, 0.02, 10).astype(F32)
    real = net.op("Mul", net.op("Cast", sums, to=1), net.op("Mul", "s", scales))
    return net.model({"x": np.zeros((2, 7, 12), F32)}, net.op("Add", FLOATS, real))


def qlinear(result=RESULT):
    net = Net()
    return net.model({"a": BYTES}, net.op("QLinearMatMul", "a", *X, WEIGHT, F32(0.01), I8(0), *result))


def computed_grid():
    net = Net()
    y = net.op("QLinearMatMul", "a", *X, WEIGHT, net.op("Abs", "s"), I8(0), *RESULT)
    return net.model({"a": BYTES, "s": np.ones((), F32)}, y)


FIRES = [
    (matmul_integer.MatMulToFloat, qdq(), ["MatMulIntegerToFloat"]),
    (matmul_integer.MatMulIntegerToFloat, scaled(), ["MatMulIntegerToFloat"]),
    (matmul_integer.MatMulIntegerToFloat, scaled(COLUMNS, b_zero=np.zeros(10, I8)), ["MatMulIntegerToFloat"]),
    (matmul_integer.MatMulIntegerToFloat, scaled(s=COLUMNS), ["MatMulIntegerToFloat"]),
    (matmul_integer.MatMulIntegerToFloat, scaled(COLUMNS.reshape(1, 10), product=False), ["MatMulIntegerToFloat"]),
    (matmul_integer.MatMulIntegerToFloat, scaled("s", s=COLUMNS, product=False), ["MatMulIntegerToFloat"]),
    (matmul_integer.MatMulIntegerToFloat, dynamic(), ["DynamicQuantizeLinear", "MatMulIntegerToFloat", "Add"]),
    (matmul_integer.AddToMatMulToFloat, to_float(np.ones(10, F32)), ["MatMulIntegerToFloat"]),
    (matmul_integer.AddToMatMulToFloat, to_float(np.ones((1, 10), F32)), ["MatMulIntegerToFloat"]),
    (matmul_integer.QLinearMatMulToInteger, qlinear(), ["MatMulInteger", "Cast", "Mul", "QuantizeLinear"]),
]
REFUSES = [
    (matmul_integer.MatMulToFloat, qdq(quantize=True), "its output goes to a grid"),
    (matmul_integer.MatMulToFloat, qdq(quantize=True, bias=np.ones(10, F32)), "its output goes to a grid"),
    (
        matmul_integer.MatMulToFloat,
        qdq(a_zero=I8(0), like=BYTES.astype(I8), weight=WEIGHT.astype(U8)),
        "no kernel multiplies int8 activations by uint8 weights",
    ),
    (
        matmul_integer.MatMulIntegerToFloat,
        scaled(like=BYTES.astype(I8), weight=WEIGHT.astype(U8)),
        "no kernel multiplies int8 by uint8 into floats",
    ),
    (
        matmul_integer.MatMulIntegerToFloat,
        scaled(a_zero=np.full(7, 3, U8)),
        "the activations have zero points of shape [7], not",
    ),
    (
        matmul_integer.MatMulIntegerToFloat,
        scaled(np.ones((7, 1), F32), product=False),
        "scales of shape [7, 1] are not one, nor one for each column of a matrix",
    ),
    (
        matmul_integer.MatMulIntegerToFloat,
        scaled("s", s=COLUMNS.reshape(1, 10), product=False),
        "scales of shape [1, 10] are not one, nor one for each column of a matrix",
    ),
    (
        matmul_integer.MatMulIntegerToFloat,
        scaled(COLUMNS, weight=np.stack([WEIGHT, WEIGHT])),
        "scales of shape [10] are not one, nor one for each column of a matrix",
    ),
    (
        matmul_integer.MatMulIntegerToFloat,
        scaled(COLUMNS.reshape(1, 1, 10), product=False),
        "scales with 3 dimensions may add some to the product",
    ),
    (matmul_integer.AddToMatMulToFloat, to_float(np.ones((7, 10), F32)), "not one float for each column"),
    (matmul_integer.AddToMatMulToFloat, to_float(np.ones((1, 1, 10), F32)), "the constant adds dimensions"),
    (matmul_integer.QLinearMatMulToInteger, computed_grid(), "the grid of the weight is computed"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_becomes_the_form_of_the_rule(rule, model, left):
    assert sorted(fired(rule(), model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_that_would_change_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    assert {type(rule) for rule in rules_of(matmul_integer)} == {row[0] for row in FIRES} == {row[0] for row in REFUSES}


@pytest.mark.parametrize(
    ("factor", "s", "product"),
    [
        (F32(0.01), F32(0.5), True),
        (np.linspace(0.01, 0.02, 10).astype(F32), F32(0.5), True),
        (F32(0.01), np.linspace(0.1, 0.2, 10).astype(F32), True),
        (np.linspace(0.01, 0.02, 10).astype(F32), None, False),
        (np.linspace(0.01, 0.02, 10).astype(F32).reshape(1, 10), None, False),
    ],
    ids=["one each", "columns and one", "one and columns", "columns", "a row"],
)
def test_a_scaled_product_is_that_of_the_real_numbers(factor, s, product):
    """Zero points and scales are those of their own operand, in whatever order the scales were multiplied."""
    zeros, a = np.arange(10).astype(I8), RNG.integers(0, 256, BYTES.shape).astype(U8)
    feeds = {"a": a, "s": np.asarray(F32(1) if s is None else s)}
    model = scaled(factor, s=feeds["s"], b_zero=zeros, a_zero=U8(100), product=product)
    done = rewriter.apply(model.clone(), [matmul_integer.MatMulIntegerToFloat()]).model
    assert [node.op_type for node in done.graph] == ["MatMulIntegerToFloat"]
    real = (a - 100.0) @ (WEIGHT - zeros.astype(np.float64)) * feeds["s"].astype(np.float64) * factor
    (found,) = evaluate(done, feeds).values()
    np.testing.assert_allclose(found, real, rtol=1e-6)
    (kernel,) = ort_cpu.run(done, feeds).values()
    np.testing.assert_allclose(kernel, real, rtol=1e-6)


def test_a_requantized_product_keeps_the_grid_of_its_result():
    a = RNG.integers(0, 256, BYTES.shape).astype(U8)
    done = rewriter.apply(qlinear((F32(0.05), U8(90))), [matmul_integer.QLinearMatMulToInteger()]).model
    levels = np.rint((a - 128.0) @ WEIGHT * 0.02 * 0.01 / 0.05) + 90
    (found,) = ort_cpu.run(done, {"a": a}).values()
    assert found.dtype == U8 and len(np.unique(found)) > 9
    assert np.abs(found - np.clip(levels, 0, 255)).max() <= 1


def test_a_dynamic_product_takes_its_bias_and_gives_the_same_floats_in_the_runtime():
    rules = matmul_integer.MatMulIntegerToFloat(), matmul_integer.AddToMatMulToFloat()
    model, feeds = dynamic(), {"x": RNG.normal(0, 1, (2, 7, 12)).astype(F32)}
    done = rewriter.apply(model.clone(), rules).model
    assert [node.op_type for node in done.graph] == ["DynamicQuantizeLinear", "MatMulIntegerToFloat"]
    (before,), (after,) = ort_cpu.run(model, feeds).values(), ort_cpu.run(done, feeds).values()
    np.testing.assert_allclose(after, before, rtol=0, atol=float(np.abs(before).max()) * 2**-23)
