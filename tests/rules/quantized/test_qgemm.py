"""Products become QGemm with the constant behind them as its bias, where that cannot show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from intact.matching import rewriter
from intact.model import query
from intact.rules.discovery import rules_of
from intact.rules.quantized import accumulator, families, qgemm
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.builder import Net
from tests.kernels import exact
from tests.rules.proof.harness import fired, integers, refused
from tests.rules.quantized.cases import qgemm as cases

MICROSOFT = "com.microsoft"
U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-40, 40, (12, 10)).astype(I8)
X, MIDDLE, RESULT = (F32(0.02), U8(128)), (F32(0.5), U8(128)), (F32(0.5), U8(128))
BYTES, STACK = np.zeros((7, 12), U8), np.zeros((2, 3, 12), U8)
BIAS = integers(RNG, U8, (10,)), F32(0.05), U8(128)
ONE, EACH = (U8([200]), F32(0.05), U8(128)), integers(RNG, U8, (7, 10))
FLOATS = np.arange(10, dtype=F32)


def qlinear(*, middle=MIDDLE, y=RESULT, bias=BIAS, like=BYTES, reshape=None, weight=WEIGHT):
    net = Net()
    product = net.op("QLinearMatMul", "a", *X, weight, F32(0.01), weight.dtype.type(0), *middle)
    if reshape is not None:
        product = net.op("Reshape", product, np.array(reshape, np.int64))
    return net.model({"a": like}, net.op("QLinearAdd", product, *middle, *bias, *y, _domain=MICROSOFT))


def arithmetic(op, constant, *, middle=MIDDLE, y=RESULT, like=BYTES, reshape=None, read=None):
    """QLinearMatMul, DQ, an operator with a constant, Q."""
    net = Net()
    value = net.op("QLinearMatMul", "a", *X, WEIGHT, F32(0.01), I8(0), *middle)
    if reshape is not None:
        value = net.op("Reshape", value, np.array(reshape, np.int64))
    real = net.dequantize(value, *(middle if read is None else read))
    return net.model({"a": like}, net.quantize(net.op(op, real, constant), *y))


def qdq(*, bias=FLOATS, like=BYTES, a_zero=X[1]):
    net = Net()
    product = net.op("MatMul", net.dequantize("a", X[0], a_zero), net.dequantize(WEIGHT, F32(0.01), I8(0)))
    return net.model({"a": like}, net.quantize(net.op("Add", bias, product), *RESULT))


IN_STACKS = ["Reshape", "QGemm", "Reshape"]
FIRES = [
    (qgemm.QLinearMatMulToQGemm, qlinear(), ["QGemm"]),
    (qgemm.QLinearMatMulToQGemm, qlinear(like=STACK), IN_STACKS),
    (qgemm.QLinearMatMulToQGemm, qlinear(reshape=[1, 7, 10]), ["QGemm", "Reshape"]),
    (qgemm.QLinearMatMulToQGemm, qlinear(bias=ONE), ["QGemm"]),
    (qgemm.QLinearMatMulToQGemm, qlinear(y=(F32(0.26), U8(128))), ["QGemm"]),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS), ["QGemm"]),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Sub", F32(1.5)), ["QGemm"]),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Mul", np.full((1, 10), 0.7, F32)), ["QGemm"]),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Div", F32(2)), ["QGemm"]),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS, like=STACK), IN_STACKS),
    (
        qgemm.FoldArithmeticIntoQGemm,
        arithmetic("Add", FLOATS, like=STACK, reshape=[6, 10]),
        ["Reshape", "QGemm", "Reshape"],
    ),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS.reshape(1, 1, 10)), ["QGemm", "Reshape"]),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS, read=(F32(0.6), U8(100))), ["QGemm"]),
    (qgemm.MatMulAddToQGemm, qdq(), ["QGemm"]),
    (qgemm.MatMulAddToQGemm, qdq(like=STACK), IN_STACKS),
]
COARSE, NARROW = (F32(1.01), U8(128)), (F32(0.01), U8(128))
REFUSES = [
    (
        qgemm.QLinearMatMulToQGemm,
        qlinear(middle=COARSE),
        "the intermediate scale is 1.01 at the output, more than 2 times its scale 0.5",
    ),
    (qgemm.QLinearMatMulToQGemm, qlinear(middle=NARROW), "but the intermediate grid covers -1.28 to 1.27"),
    (
        qgemm.QLinearMatMulToQGemm,
        qlinear(bias=(integers(RNG, U8, (7, 10)), *BIAS[1:])),
        "not one number for each of 10",
    ),
    (qgemm.QLinearMatMulToQGemm, qlinear(reshape=[7, 2, 5]), "the last dimension of the result is 5, not the 10"),
    (
        qgemm.QLinearMatMulToQGemm,
        qlinear(reshape=[14, 5], bias=ONE),
        "the last dimension of the result is 5, not the 10",
    ),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS, middle=NARROW), "the intermediate grid covers -1.28 to"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS, middle=COARSE), "more than 2 times its scale 0.5"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Mul", F32(2.1)), "at the output, more than 2 times its scale 0.5"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Mul", F32(-1)), "a factor of -1 cannot go into a scale"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", F32(1e9)), "accumulators may reach 5e+12, more than int32 holds"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", np.ones((7, 10), F32)), "shape [7, 10], not one number for each"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", np.ones((2, 1, 10), F32)), "shape [2, 1, 10], not one number"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS, y=(F32(0.5), I8(0))), "the result is int8, the product"),
    (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", F32(1), reshape=[14, 5]), "last dimension of the result is 5"),
    (qgemm.MatMulAddToQGemm, qdq(bias=np.ones((7, 10), F32)), "not one number for each of 10 channels"),
    (qgemm.MatMulAddToQGemm, qdq(a_zero=I8(0), like=BYTES.astype(I8)), "output is uint8, unlike input"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_and_its_constant_become_qgemm(rule, model, left):
    assert sorted(fired(rule(), model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_a_product_that_would_change_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    assert {type(rule) for rule in rules_of(qgemm)} == {row[0] for row in FIRES} == {row[0] for row in REFUSES}


def test_a_constant_is_in_steps_of_the_accumulator():
    (node,) = rewriter.apply(arithmetic("Sub", FLOATS), [qgemm.FoldArithmeticIntoQGemm()]).model.graph
    np.testing.assert_array_equal(query.constant(node.inputs[6]), np.rint(-FLOATS / np.float64(F32(0.02) * F32(0.01))))


@pytest.mark.parametrize(
    ("rule", "model"),
    [
        (qgemm.QLinearMatMulToQGemm, qlinear(like=STACK)),
        (qgemm.FoldArithmeticIntoQGemm, arithmetic("Add", FLOATS, like=STACK)),
    ],
    ids=["QLinear", "float"],
)
def test_a_stack_of_60_results_is_flattened_where_the_table_says_that_60_pay(rule, model):
    assert sorted(fired(rule(60), model)) == sorted(IN_STACKS)
    assert "flattening a stack pays from 61 results on, not 60" in refused(rule(61), model)


def test_a_matrix_needs_no_flattening():
    assert fired(qgemm.QLinearMatMulToQGemm(1000), qlinear()) == ["QGemm"]


def test_the_reachable_sums_are_those_of_the_worst_rows():
    zeros = integers(RNG, I8, (10,))
    net = Net()
    y = net.op("QLinearMatMul", "a", *X, WEIGHT, np.full(10, 0.01, F32), zeros, *MIDDLE)
    found = accumulator.accumulator(net.model({"a": BYTES}, y).graph[0])
    centred = WEIGHT.astype(int) - zeros.astype(int)
    ends = np.sort(np.stack([centred * -128, centred * 127]), axis=0).sum(axis=1)
    np.testing.assert_array_equal([found.low, found.high], ends)


def test_a_product_that_others_read_keeps_its_grid():
    model = arithmetic("Add", FLOATS)
    model.graph.outputs.append(model.graph[0].outputs[0])
    assert not rewriter.apply(model, [qgemm.FoldArithmeticIntoQGemm()]).applications


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
    result = families.rewrite(qlinear(), replace(target, rewrite=table))
    assert {node.op_type for node in result.model.graph} == expected


def test_an_intermediate_step_of_exactly_two_output_steps_may_move_a_result_by_two():
    """Why the guard looks at every border at twice the scale of the output: v = 1 rounds to 0, and 0.5 is added."""
    weight, bias = np.ones((1, 1), I8), (U8([129]), F32(0.5), U8(128))
    net = Net()
    product = net.op("QLinearMatMul", "a", F32(0.5), U8(128), weight, F32(1), I8(0), F32(2), U8(128))
    y = net.op("QLinearAdd", product, F32(2), U8(128), *bias, F32(1), U8(128), _domain=MICROSOFT)
    model = net.model({"a": np.zeros((1, 1), U8)}, y)
    assert refused(qgemm.QLinearMatMulToQGemm(), model) == "some results would move by 2 steps"


@pytest.mark.parametrize(
    "generate", [cases.qlinear_matmul_add, cases.arithmetic, cases.matmul_add], ids=["qlinear", "arithmetic", "qdq"]
)
def test_qgemm_is_within_one_step_in_the_runtime(generate):
    for case in list(generate(np.random.default_rng(5)))[::3]:
        done = rewriter.apply(case.model.clone(), rules_of(qgemm))
        assert done.applications
        name = case.model.graph.outputs[0].name
        before, after = (
            ort_cpu.run(exact(model), case.feeds[0])[name].astype(int) for model in (case.model, done.model)
        )
        assert np.abs(before - after).max() <= 1
