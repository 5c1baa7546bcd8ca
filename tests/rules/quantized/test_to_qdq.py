"""An operator on integers becomes DQ → op → Q, except where that would be another function."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.rules.discovery import rules_of
from intact.rules.quantized import matmul_integer, moves_to_qdq, to_qdq, to_qlinear
from intact.runtime import ort_cpu
from tests.builder import Net
from tests.rules.proof.harness import distance, fired, integers, refused
from tests.rules.proof.interpreter import evaluate
from tests.rules.quantized.cases import matmul_integer as products
from tests.rules.quantized.cases import to_qdq as cases
from tests.rules.quantized.cases import to_qlinear as forward_cases

MICROSOFT = "com.microsoft"
U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
X = (F32(0.02), U8(3))
Y = (F32(1 / 256), U8(0))


SIX = np.zeros(6, np.int32)


def unary(op, *, y=Y, shape=(1, 4, 6, 6), **attributes):
    net = Net()
    return net.model({"x": np.zeros(shape, U8)}, net.op(op, "x", *X, *y, _domain=MICROSOFT, **attributes))


def pair(op, y_scale):
    net = Net()
    y = net.op(op, "x", *X, "x", *X, y_scale, U8(0), _domain=MICROSOFT)
    return net.model({"x": np.zeros((4, 6), U8)}, y)


def product(op, shape, scale, *, a_scale=0.02, y=Y, **attributes):
    net, a = Net(), np.zeros((*shape[:-2], 2, shape[-2]), U8)
    zero = np.zeros(np.shape(scale), I8)
    weight = integers(RNG, I8, shape), np.asarray(scale, F32), zero
    return net.model({"a": a}, net.op(op, "a", np.asarray(a_scale, F32), np.asarray(U8(3)), *weight, *y, **attributes))


def computed_scale(op, bias=SIX, **attributes):
    net = Net()
    weight = (I8([[1] * 6] * 5) if op == "QGemm" else integers(RNG, I8, (6, 4, 3, 3))), F32(0.01), I8(0)
    like = np.zeros((2, 5) if op == "QGemm" else (1, 4, 6, 6), U8)
    order = (bias, *Y) if op == "QGemm" else (*Y, bias)
    y = net.op(op, "x", net.op("Abs", "s"), U8(3), *weight, *order, **attributes)
    return net.model({"x": like, "s": np.ones((), F32)}, y)


def integer_op(op, scale=0.05, *more, **attributes):
    net = Net()
    levels = net.quantize("x", scale, np.full(np.shape(scale), 3, U8), **({"axis": 0} if np.shape(scale) else {}))
    return net.model({"x": np.zeros((4, 6), F32)}, net.op(op, levels, *more, **attributes))


REFUSES = [
    (to_qdq.ConvToQdq, computed_scale("QLinearConv"), "in steps of scales that are computed"),
    (to_qdq.GemmToQdq, computed_scale("QGemm", _domain=MICROSOFT), "in steps of scales that are computed"),
    (to_qdq.MatMulToQdq, product("QLinearMatMul", (3, 5, 6), np.full((3, 1, 6), 0.01)), "scales of rank 3"),
    (
        to_qdq.MatMulToQdq,
        product("QLinearMatMul", (5, 6), 0.01, a_scale=[[0.02, 0.03]]),
        "scales of rank 2 along axis -2",
    ),
    (
        to_qdq.MatMulToQdq,
        product("QLinearMatMul", (5, 6), 0.01, y=(F32(1e-9), U8(0))),
        "float32 between DQ and Q tells",
    ),
    (
        to_qdq.GemmToQdq,
        product("QGemm", (5, 6), 0.01, _domain=MICROSOFT, y=(None, F32(1e-9), U8(0))),
        "float32 between DQ and Q tells",
    ),
    (to_qdq.AddToQdq, pair("QLinearAdd", F32(1e-6)), "and float32 loses some"),
    (to_qdq.MulToQdq, pair("QLinearMul", F32(1e-9)), "more than kernels hold in int32"),
    (
        to_qdq.AveragePoolToQdq,
        unary("QLinearAveragePool", y=(F32(1e-10), U8(0)), kernel_shape=[2, 2]),
        "more than kernels hold in int32",
    ),
    (to_qdq.SoftmaxToQdq, unary("QLinearSoftmax", y=(F32(1 / 257), U8(0)), opset=13), "something else than Softmax"),
    (to_qdq.SoftmaxToQdq, unary("QLinearSoftmax", shape=(4, 1), opset=13), "the kernel turns into 0"),
    (
        moves_to_qdq.InterpolateToQdq,
        integer_op("Resize", 0.05, None, F32([1, 2]), mode="cubic"),
        "between two integers",
    ),
    (
        moves_to_qdq.InterpolateToQdq,
        integer_op(
            "Resize",
            0.05,
            F32([0, 0, 1, 2]),
            F32([1, 2]),
            mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
        "a value that is on no grid",
    ),
    (
        to_qdq.AveragePoolToQdq,
        unary("QLinearAveragePool", kernel_shape=[2, 2], ceil_mode=1, count_include_pad=1),
        "divide by other counts",
    ),
    (moves_to_qdq.MoveToQdq, integer_op("Transpose", np.full(4, 0.05, F32)), "4 numbers, not one constant scale"),
    (moves_to_qdq.MoveToQdq, integer_op("Flatten", 1e-40), "is not between"),
    (
        moves_to_qdq.MoveToQdq,
        integer_op("Resize", 0.05, None, F32([1, 2]), mode="linear"),
        "this Resize computes values that it is not given",
    ),
    (moves_to_qdq.ClipToQdq, integer_op("Clip", 1e-40, U8(3)), "is not between"),
]
LONG = np.full((1, 4, 1, 200), 127, I8), F32(0.01), I8(0)


def test_the_sums_of_a_convolution_are_those_of_all_its_inputs():
    """800 products of 252 · 127 are more steps of 0.0002 than float32 tells apart; those of a column are not."""
    net = Net()
    y = net.op("QLinearConv", "x", *X, *LONG, F32(0.0002), U8(0))
    model = net.model({"x": np.zeros((1, 4, 1, 200), U8)}, y)
    assert "float32 between DQ and Q tells" in refused(to_qdq.ConvToQdq(), model)


def test_scales_may_be_computed_where_there_is_no_bias():
    assert "Conv" in fired(to_qdq.ConvToQdq(), computed_scale("QLinearConv", bias=None))


FLOAT_OP = {
    "mat_mul_to_float_to_qdq": "MatMul",
    "reduce_mean_to_qdq": "ReduceMean",
    "move_to_qdq": "Transpose",
    "interpolate_to_qdq": "Resize",
    "concat_integers_to_qdq": "Concat",
    "clip_to_qdq": "Clip",
}


@pytest.mark.parametrize("rule", rules_of(to_qdq), ids=lambda rule: rule.name)
def test_an_operator_on_integers_becomes_one_between_grids(rule):
    case = next(iter(cases.CASES[rule.name](np.random.default_rng(1))))
    left = fired(rule, case.model)
    name = getattr(rule, "op_type", "").removeprefix("QLinear")
    assert FLOAT_OP.get(rule.name, "Gemm" if name == "QGemm" else name) in left
    assert not [op for op in left if op.startswith(("QLinear", "QGemm", "MatMulInteger"))]


@pytest.mark.parametrize(("scales", "zeros"), [(6, 1), (6, ()), (1, 6), ((), 6), (6, 6)])
def test_a_weight_with_more_scales_than_zero_points_or_fewer_gets_as_many(scales, zeros):
    """Kernels take any of these, DequantizeLinear only the last."""
    rng, net, x = np.random.default_rng(2), Net(), integers(RNG, U8, (1, 4, 6, 6))
    grid = rng.uniform(0.005, 0.01, scales).astype(F32), integers(rng, I8, (6,))[: np.size(np.ones(zeros))]
    weight = integers(rng, I8, (6, 4, 3, 3)), grid[0], grid[1].reshape(zeros)
    bias = rng.integers(-3000, 3000, 6).astype(np.int32)
    model = net.model({"x": x}, net.op("QLinearConv", "x", *X, *weight, F32(3), U8(100), bias))
    done = rewriter.apply(model.clone(), [to_qdq.ConvToQdq()])
    assert done.applications
    (before,), (after,) = evaluate(model, {"x": x}).values(), ort_cpu.run(done.model, {"x": x}).values()
    assert len(np.unique(before)) > 5 and np.abs(before.astype(int) - after).max() <= 1


def test_a_row_of_scales_is_a_vector_of_them():
    """QLinearMatMul takes scales of the rank of its matrix as well."""
    model = product("QLinearMatMul", (5, 6), np.full((1, 6), 0.01, F32))
    assert "MatMul" in fired(to_qdq.MatMulToQdq(), model)
    x = {"a": integers(RNG, U8, (2, 5))}
    done = rewriter.apply(model.clone(), [to_qdq.MatMulToQdq()]).model
    (before,), (after,) = ort_cpu.run(model, x).values(), ort_cpu.run(done, x).values()
    assert np.abs(before.astype(int) - after).max() <= 1


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_what_would_be_another_function_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_integers_on_different_grids_are_not_concatenated_as_one():
    net = Net()
    y = net.op("Concat", net.quantize("x", 0.05, U8(3)), net.quantize("x", 0.06, U8(3)), axis=1)
    model = net.model({"x": np.zeros((4, 6), F32)}, y)
    assert "the scales differ" in refused(moves_to_qdq.ConcatIntegersToQdq(), model)


@pytest.mark.parametrize("name", forward_cases.CASES)
def test_a_round_trip_returns_an_equivalent_model(name):
    """No integer operator is left, and integers are within a step for each of the two rules."""
    forward = next(rule for rule in rules_of(to_qlinear) if rule.name == name)
    for case in list(forward_cases.CASES[name](np.random.default_rng(2)))[::5]:
        there = rewriter.apply(case.model.clone(), [forward]).model
        back = rewriter.apply(there, rules_of(to_qdq)).model
        assert not [node.op_type for node in back.graph if node.op_type.startswith(("QLinear", "QGemm"))]
        for feeds in case.feeds:
            before, after = evaluate(case.model, feeds), evaluate(back, feeds)
            for output in before:
                assert distance(before[output], after[output], case.step) <= 2


def test_a_float_product_comes_back_with_its_bias():
    case = next(iter(products.add_to_float(np.random.default_rng(3))))
    fused = rewriter.apply(case.model.clone(), [matmul_integer.AddToMatMulToFloat()]).model
    assert fired(to_qdq.MatMulToFloatToQdq(), fused) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "Add"]


BIAS = np.linspace(-9, 9, 6).astype(F32)


@pytest.mark.parametrize("bias", [None, BIAS], ids=["alone", "with a bias"])
def test_a_float_product_is_that_of_the_real_numbers(bias):
    """Every input has a value of its own, so that none can stand for another."""
    net, a, b = Net(), integers(RNG, U8, (3, 5)), integers(RNG, I8, (5, 6))
    scales, zeros = np.linspace(0.01, 0.02, 6).astype(F32), np.arange(6).astype(I8)
    y = net.op("MatMulIntegerToFloat", "a", b, F32(0.03), scales, U8(120), zeros, bias, _domain=MICROSOFT)
    done = rewriter.apply(net.model({"a": a}, y), [to_qdq.MatMulToFloatToQdq()])
    assert [item.rule for item in done.applications] == ["mat_mul_to_float_to_qdq"]
    real = (a - 120.0) * F32(0.03) @ ((b - zeros.astype(np.float64)) * scales) + (0 if bias is None else bias)
    np.testing.assert_allclose(evaluate(done.model, {"a": a})[y], real, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [None, np.int32([-900, 500, 0, 7, 2000, -3])], ids=["alone", "with a bias"])
@pytest.mark.parametrize("attributes", [{}, {"transB": 0}, {"transB": 1}, {"transB": 1, "alpha": 0.5}], ids=str)
def test_a_gemm_is_that_of_the_real_numbers_with_scales_along_its_columns(bias, attributes):
    """A scale and a zero point belong to a column of the product, on whatever axis of the weight that lies."""
    net, a, b = Net(), integers(RNG, U8, (3, 6)), integers(RNG, I8, (6, 6))
    scales, zeros = np.linspace(0.002, 0.02, 6).astype(F32), np.arange(6).astype(I8)
    weight = b.T.copy() if attributes.get("transB") else b
    given = ("a", F32(0.03), U8(120), weight, scales, zeros, bias, F32(0.25), U8(100))
    y = net.op("QGemm", *given, _domain=MICROSOFT, **attributes)
    done = rewriter.apply(net.model({"a": a}, y), [to_qdq.GemmToQdq()])
    assert [item.rule for item in done.applications] == ["gemm_to_qdq"]
    sums = (a - 120.0) @ (b - zeros.astype(np.float64)) + (0 if bias is None else bias)
    levels = np.rint(attributes.get("alpha", 1.0) * sums * F32(0.03) * scales / 0.25) + 100
    found = evaluate(done.model, {"a": a})[y]
    assert found.dtype == U8 and len(np.unique(found)) > 9
    assert np.abs(found - np.clip(levels, 0, 255)).max() <= 1


POOLS = [("QLinearAveragePool", {"kernel_shape": [3, 2], "strides": [2, 1]}), ("QLinearGlobalAveragePool", {})]


@pytest.mark.parametrize(("op", "attributes"), POOLS, ids=lambda item: item if isinstance(item, str) else "")
@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (1, 6, 4, 8)])
def test_a_pool_with_channels_last_is_turned_around_and_computes_the_same(op, attributes, shape):
    model = unary(op, y=(F32(0.03), U8(9)), shape=shape, channels_last=1, **attributes)
    done = rewriter.apply(model.clone(), rules_of(to_qdq)).model
    assert not [node.op_type for node in done.graph if node.op_type.startswith("QLinear")]
    feeds, name = {"x": integers(RNG, U8, shape)}, model.graph.outputs[0].name
    before, after = ort_cpu.run(model, feeds)[name].astype(int), ort_cpu.run(done, feeds)[name].astype(int)
    assert before.shape == after.shape
    assert np.abs(before - after).max() <= 1


def test_a_pool_with_channels_last_and_unknown_rank_stays():
    model = unary("QLinearGlobalAveragePool", channels_last=1)
    model.graph.inputs[0].shape = None
    assert "unknown rank" in refused(to_qdq.GlobalAveragePoolToQdq(), model)


def test_an_old_softmax_over_dimensions_of_unknown_size_stays():
    model = unary("QLinearSoftmax", opset=12, axis=1)
    model.graph.inputs[0].shape = None
    assert "over all dimensions from axis 1 on" in refused(to_qdq.SoftmaxToQdq(), model)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("opset", [12, 13])
def test_softmax_is_over_the_dimensions_that_its_opset_means(opset, axis):
    net, x = Net(), integers(RNG, U8, (2, 3, 5))
    grids = (F32(0.1), U8(3), F32(1 / 256), U8(0))
    y = net.op("QLinearSoftmax", "x", *grids, _domain=MICROSOFT, opset=opset, axis=axis)
    model = net.model({"x": x}, y)
    done = rewriter.apply(model.clone(), rules_of(to_qdq))
    assert [item.rule for item in done.applications] == ["softmax_to_qdq"]
    before, after = (ort_cpu.run(item, {"x": x})[y].astype(int) for item in (model, done.model))
    assert before.shape == after.shape and np.abs(before - after).max() <= 1


@pytest.mark.parametrize("scale", [1 / 256, 1 / 255, 1 / 200, 0.01, 0.3, 2.0])
@pytest.mark.parametrize("act", [U8, I8])
def test_softmax_is_within_a_step_of_the_kernel_for_scales_from_1_256_up(act, scale):
    for zero in (np.iinfo(act).min, np.iinfo(act).min + 10, 0, np.iinfo(act).max):
        net, x = Net(), integers(RNG, act, (64, 5))
        y = net.op("QLinearSoftmax", "x", F32(0.1), act(3), F32(scale), act(zero), _domain=MICROSOFT, opset=13)
        model = net.model({"x": x}, y)
        done = rewriter.apply(model.clone(), rules_of(to_qdq))
        assert [item.rule for item in done.applications] == ["softmax_to_qdq"]
        before, after = (ort_cpu.run(item, {"x": x})[y].astype(int) for item in (model, done.model))
        assert np.abs(before - after).max() <= 1
