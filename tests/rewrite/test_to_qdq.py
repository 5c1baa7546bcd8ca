"""An operator on integers becomes DQ → op → Q, except where that would be another function."""

from __future__ import annotations

import numpy as np
import pytest

from intact.graph import rewriter
from intact.rewrite import gemm, to_qdq, to_qlinear
from tests.rewrite.cases import gemm as gemm_cases
from tests.rewrite.cases import to_qdq as cases
from tests.rewrite.cases import to_qlinear as forward_cases
from tests.rewrite.harness import Net, distance, fired, integers, refused
from tests.rewrite.interpreter import evaluate

MICROSOFT = "com.microsoft"
U8, I8, F32 = np.uint8, np.int8, np.float32
RNG = np.random.default_rng(0)
X = (F32(0.02), U8(3))
Y = (F32(1 / 256), U8(0))


def unary(op, *, y=Y, shape=(1, 4, 6, 6), **attributes):
    net = Net()
    return net.model({"x": np.zeros(shape, U8)}, net.op(op, "x", *X, *y, _domain=MICROSOFT, **attributes))


def product(op, shape, scale, *, a_scale=0.02, **attributes):
    net, a = Net(), np.zeros((*shape[:-2], 2, shape[-2]), U8)
    zero = np.zeros(np.shape(scale), I8)
    weight = integers(RNG, I8, shape), np.asarray(scale, F32), zero
    return net.model({"a": a}, net.op(op, "a", np.asarray(a_scale, F32), np.asarray(U8(3)), *weight, *Y, **attributes))


def computed_scale(op, **attributes):
    net = Net()
    bias = np.zeros(6, np.int32)
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
    (to_qdq.SoftmaxToQdq, unary("QLinearSoftmax", y=(F32(1 / 255), U8(0)), opset=13), "something else than Softmax"),
    (to_qdq.SoftmaxToQdq, unary("QLinearSoftmax", opset=12, axis=1), "over all dimensions from axis 1 on"),
    (to_qdq.SoftmaxToQdq, unary("QLinearSoftmax", shape=(4, 1), opset=13), "the kernel turns into 0"),
    (to_qdq.InterpolateToQdq, integer_op("Resize", 0.05, None, F32([1, 2]), mode="cubic"), "between two integers"),
    (
        to_qdq.InterpolateToQdq,
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
    (to_qdq.AveragePoolToQdq, unary("QLinearAveragePool", kernel_shape=[2, 2], channels_last=1), "channels are last"),
    (to_qdq.GlobalAveragePoolToQdq, unary("QLinearGlobalAveragePool", channels_last=1), "channels are last"),
    (to_qdq.MoveToQdq, integer_op("Transpose", np.full(4, 0.05, F32)), "4 numbers, not one constant scale"),
    (to_qdq.MoveToQdq, integer_op("Flatten", 1e-40), "is not between"),
    (
        to_qdq.MoveToQdq,
        integer_op("Resize", 0.05, None, F32([1, 2]), mode="linear"),
        "this Resize computes values that it is not given",
    ),
    (to_qdq.ClipToQdq, integer_op("Clip", 1e-40, U8(3)), "is not between"),
]
FLOAT_OP = {
    "mat_mul_to_float_to_qdq": "MatMul",
    "reduce_mean_to_qdq": "ReduceMean",
    "move_to_qdq": "Transpose",
    "interpolate_to_qdq": "Resize",
    "concat_integers_to_qdq": "Concat",
    "clip_to_qdq": "Clip",
}


@pytest.mark.parametrize("rule", to_qdq.RULES, ids=lambda rule: rule.name)
def test_an_operator_on_integers_becomes_one_between_grids(rule):
    case = next(iter(cases.CASES[rule.name](np.random.default_rng(1))))
    left = fired(rule, case.model)
    name = getattr(rule, "op_type", "").removeprefix("QLinear")
    assert FLOAT_OP.get(rule.name, "Gemm" if name == "QGemm" else name) in left
    assert not [op for op in left if op.startswith(("QLinear", "QGemm", "MatMulInteger"))]


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_what_would_be_another_function_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


def test_integers_on_different_grids_are_not_concatenated_as_one():
    net = Net()
    y = net.op("Concat", net.quantize("x", 0.05, U8(3)), net.quantize("x", 0.06, U8(3)), axis=1)
    model = net.model({"x": np.zeros((4, 6), F32)}, y)
    assert "the scales differ" in refused(to_qdq.ConcatIntegersToQdq(), model)


@pytest.mark.parametrize("name", forward_cases.CASES)
def test_a_round_trip_returns_an_equivalent_model(name):
    """No integer operator is left, and integers are within a step for each of the two rules."""
    forward = next(rule for rule in to_qlinear.RULES if rule.name == name)
    for case in list(forward_cases.CASES[name](np.random.default_rng(2)))[::5]:
        there = rewriter.apply(case.model.clone(), [forward]).model
        back = rewriter.apply(there, to_qdq.RULES).model
        assert not [node.op_type for node in back.graph if node.op_type.startswith(("QLinear", "QGemm"))]
        for feeds in case.feeds:
            before, after = evaluate(case.model, feeds), evaluate(back, feeds)
            for output in before:
                assert distance(before[output], after[output], case.step) <= 2


def test_a_float_product_comes_back_with_its_bias():
    case = next(iter(gemm_cases.add_to_float(np.random.default_rng(3))))
    fused = rewriter.apply(case.model.clone(), [gemm.AddToMatMulToFloat()]).model
    assert fired(to_qdq.MatMulToFloatToQdq(), fused) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "Add"]
