"""Products become the GEMM that a target's table names, with their bias where that cannot show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intact import rewrite
from intact.graph import rewriter
from intact.rewrite import exactness, gemm
from intact.targets.registry import load_target
from intact.vendor import cpu
from tests.rewrite.cases import gemm as cases
from tests.rewrite.harness import Net, fired, integers, refused

MICROSOFT = "com.microsoft"
U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-40, 40, (12, 10)).astype(I8)
X, MIDDLE, RESULT = (F32(0.02), U8(128)), (F32(0.5), U8(128)), (F32(0.5), U8(128))
BYTES = np.zeros((7, 12), U8)
BIAS = integers(RNG, U8, (10,)), F32(0.05), U8(128)
FLOATS = np.arange(10, dtype=F32)


def qlinear(*, middle=MIDDLE, y=RESULT, bias=BIAS, like=BYTES, reshape=None, weight=WEIGHT):
    net = Net()
    product = net.op("QLinearMatMul", "a", *X, weight, F32(0.01), weight.dtype.type(0), *middle)
    if reshape is not None:
        product = net.op("Reshape", product, np.array(reshape, np.int64))
    return net.model({"a": like}, net.op("QLinearAdd", product, *middle, *bias, *y, _domain=MICROSOFT))


def qdq(*, bias=FLOATS, like=BYTES, quantize=True, weight=WEIGHT, a_zero=X[1]):
    net = Net()
    product = net.op(
        "MatMul", net.dequantize("a", X[0], a_zero), net.dequantize(weight, F32(0.01), weight.dtype.type(0))
    )
    result = product if bias is None else net.op("Add", bias, product)
    return net.model({"a": like}, net.quantize(result, *RESULT) if quantize else result)


def connected(*, middle=MIDDLE, like=BYTES, bias=BIAS):
    net = Net()
    product = net.op("MatMul", net.dequantize("a", *X), net.dequantize(WEIGHT, F32(0.01), I8(0)))
    again = product if middle is None else net.dequantize(net.quantize(product, *middle), *middle)
    added = net.dequantize(*bias) if isinstance(bias, tuple) else bias
    return net.model({"a": like}, net.quantize(net.op("Add", again, added), *RESULT))


def plain_gemm(*, bias=None, like=BYTES, a_scale=X[0], **attributes):
    net = Net()
    a = net.dequantize("a", a_scale, np.full(np.shape(a_scale), 128, U8), axis=0)
    return net.model({"a": like}, net.op("Gemm", a, net.dequantize(WEIGHT, F32(0.01), I8(0)), bias, **attributes))


def to_float(bias):
    net = Net()
    inputs = "a", WEIGHT, X[0], F32(0.01), X[1], I8(0)
    return net.model({"a": BYTES}, net.op("Add", net.op("MatMulIntegerToFloat", *inputs, _domain=MICROSOFT), bias))


def computed_grid():
    net = Net()
    y = net.op("QLinearMatMul", "a", *X, WEIGHT, net.op("Abs", "s"), I8(0), *RESULT)
    return net.model({"a": BYTES, "s": np.ones((), F32)}, y)


STACK = np.zeros((2, 3, 12), U8)
TURNED = np.zeros((12, 7), U8)
DQ2 = ["DequantizeLinear", "DequantizeLinear"]
FIRES = [
    (gemm.FoldGemmFactors, plain_gemm(alpha=0.5), [*DQ2, "Gemm"]),
    (gemm.FoldGemmFactors, plain_gemm(beta=0.5, bias=np.ones(10, F32)), [*DQ2, "DequantizeLinear", "Gemm"]),
    (gemm.FoldGemmTranspose, plain_gemm(like=TURNED, transA=1), [*DQ2, "Gemm", "Transpose"]),
    (gemm.QLinearMatMulToQGemm, qlinear(), ["QGemm"]),
    (gemm.QLinearMatMulToQGemm, qlinear(like=STACK), ["Reshape", "QGemm", "Reshape"]),
    (gemm.MatMulAddToQGemm, qdq(), ["QGemm"]),
    (gemm.MatMulAddToQGemm, qdq(like=STACK), ["Reshape", "QGemm", "Reshape"]),
    (gemm.MatMulToFloat, qdq(bias=None, quantize=False), ["MatMulIntegerToFloat"]),
    (gemm.AddToMatMulToFloat, to_float(np.ones(10, F32)), ["MatMulIntegerToFloat"]),
    (gemm.QLinearMatMulToInteger, qlinear(), ["MatMulInteger", "Cast", "Mul", "QuantizeLinear", "QLinearAdd"]),
    (gemm.MatMulToFullyConnected, connected(), [*DQ2, "DequantizeLinear", "Gemm", "QuantizeLinear"]),
    (gemm.MatMulToFullyConnected, connected(middle=None), [*DQ2, "DequantizeLinear", "Gemm", "QuantizeLinear"]),
    (
        gemm.MatMulToFullyConnected,
        connected(middle=None, bias=FLOATS),
        [*DQ2, "DequantizeLinear", "Gemm", "QuantizeLinear"],
    ),
]
COARSE, NARROW = (F32(1.0), U8(128)), (F32(0.01), U8(128))
REFUSES = [
    (gemm.FoldGemmFactors, plain_gemm(), "alpha and beta are 1 already"),
    (gemm.FoldGemmFactors, plain_gemm(alpha=-1.0), "alpha is -1.0, and a scale has to be positive"),
    (gemm.FoldGemmFactors, plain_gemm(alpha=2.0, bias=np.ones((7, 10), F32)), "not one number for each of 10 channels"),
    (
        gemm.FoldGemmTranspose,
        plain_gemm(like=TURNED, transA=1, a_scale=np.full(12, 0.02, F32)),
        "12 numbers, not one constant scale",
    ),
    (
        gemm.QLinearMatMulToQGemm,
        qlinear(middle=COARSE),
        "the intermediate scale 1 is not below twice the output scale 0.5",
    ),
    (gemm.QLinearMatMulToQGemm, qlinear(middle=NARROW), "but the intermediate grid covers -1.28 to 1.27"),
    (gemm.QLinearMatMulToQGemm, qlinear(bias=(integers(RNG, U8, (7, 10)), *BIAS[1:])), "not one number for each of 10"),
    (gemm.QLinearMatMulToQGemm, qlinear(reshape=[7, 2, 5]), "the shapes of the input and of the result are not known"),
    (gemm.MatMulAddToQGemm, qdq(bias=np.ones((7, 10), F32)), "not one number for each of 10 channels"),
    (gemm.MatMulAddToQGemm, qdq(a_zero=I8(0), like=BYTES.astype(I8)), "output is uint8, unlike input"),
    (gemm.MatMulToFloat, qdq(bias=None), "its output goes to a grid"),
    (gemm.MatMulToFloat, qdq(), "its output goes to a grid"),
    (
        gemm.MatMulToFloat,
        qdq(bias=None, quantize=False, a_zero=I8(0), like=BYTES.astype(I8), weight=WEIGHT.astype(U8)),
        "no kernel multiplies int8 activations by uint8 weights",
    ),
    (gemm.AddToMatMulToFloat, to_float(np.ones((7, 10), F32)), "not one float for each column"),
    (gemm.QLinearMatMulToInteger, computed_grid(), "the grid of the weight is computed"),
    (gemm.MatMulToFullyConnected, connected(like=STACK), "Gemm takes matrices, and the input has rank 3"),
    (gemm.MatMulToFullyConnected, connected(middle=NARROW), "but the intermediate grid covers"),
    (gemm.MatMulToFullyConnected, connected(middle=None, bias=FLOATS * F32(1e9)), "more than int32 holds"),
    (gemm.MatMulToFullyConnected, connected(bias=np.ones(10, F32)), "the bias is not behind a DequantizeLinear"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_becomes_the_form_of_the_rule(rule, model, left):
    assert sorted(fired(rule(), model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_that_would_change_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    assert {type(rule) for rule in gemm.RULES} == {row[0] for row in FIRES} == {row[0] for row in REFUSES}


@pytest.mark.parametrize(
    ("kernels", "rules", "expected"),
    [
        ({(MICROSOFT, "QGemm")}, ("gemm",), {"QGemm"}),
        ({("", "MatMulInteger")}, ("gemm",), {"MatMulInteger", "Cast", "Mul", "QuantizeLinear", "QLinearAdd"}),
        (set(), ("gemm",), {"QLinearMatMul", "QLinearAdd"}),
    ],
)
def test_the_form_comes_from_the_table_of_the_target(kernels, rules, expected):
    target = load_target("cpu")
    table = replace(target.rewrite, rules=rules, kernels=frozenset(kernels))
    result = rewrite.rewrite(qlinear(), replace(target, rewrite=table))
    assert {node.op_type for node in result.model.graph} == expected


def test_an_intermediate_step_of_exactly_two_output_steps_may_move_a_result_by_two():
    """Why the guard wants less than twice the scale of the output: v = 1 rounds to 0, and 0.5 is added."""
    weight, bias = np.ones((1, 1), I8), (U8([129]), F32(0.5), U8(128))
    net = Net()
    product = net.op("QLinearMatMul", "a", F32(0.5), U8(128), weight, F32(1), I8(0), F32(2), U8(128))
    y = net.op("QLinearAdd", product, F32(2), U8(128), *bias, F32(1), U8(128), _domain=MICROSOFT)
    model = net.model({"a": np.zeros((1, 1), U8)}, y)
    assert "not below twice the output scale" in refused(gemm.QLinearMatMulToQGemm(), model)


@pytest.mark.parametrize("generate", [cases.qlinear_matmul_add, cases.matmul_add], ids=["qlinear", "qdq"])
def test_qgemm_is_within_one_step_in_the_runtime(generate):
    for case in list(generate(np.random.default_rng(5)))[::3]:
        done = rewriter.apply(case.model.clone(), gemm.RULES[2:4]).model
        name = case.model.graph.outputs[0].name
        before, after = (cpu.run(model, case.feeds[0])[name].astype(int) for model in (case.model, done))
        assert np.abs(before - after).max() <= 1


@pytest.mark.parametrize("target", [load_target("cpu", vnni=True), load_target("qnn")], ids=["cpu", "qnn"])
@pytest.mark.parametrize("levels", [3, 128])
def test_a_bias_that_moves_by_half_a_step_of_the_sums_keeps_the_claim_however_small_the_sums_are(target, levels):
    net = Net()
    a, weight = net.dequantize("a", *X), net.dequantize(WEIGHT[:2], F32(0.01), I8(0))
    model = net.model({"a": BYTES[:, :2]}, net.op("Gemm", a, weight, FLOATS * F32(1e-4), alpha=2.0, beta=0.5))
    rules, rows = (
        rewrite.rules_for(target),
        [{"a": integers(RNG, I8, (7, 2)).clip(-levels, levels).astype(U8) + U8(128)}],
    )
    done = rewriter.apply(model.clone(), rules)
    assert "fold_gemm_factors" in {item.rule for item in done.applications}
    assert exactness.validate(model, done, rules, rows).checked
