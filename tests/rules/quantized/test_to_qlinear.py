"""DQ → op → Q becomes one operator on integers where a kernel computes it rightly, and stays where none does."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import onnx_ir as ir
import pytest

from intact.matching import rewriter
from intact.rules.discovery import rules_of
from intact.rules.quantized import to_qlinear
from intact.runtime import ort_cpu
from tests.builder import Net
from tests.rules.proof.harness import every_level, fired, integers, refused
from tests.rules.quantized.cases.to_qlinear import kernel_rule

U8, I8, U16, F32 = np.uint8, np.int8, np.uint16, np.float32
RNG = np.random.default_rng(0)
BYTES = np.zeros((1, 4, 6, 6), U8)
X, X2, W, Y, Y2 = (0.02, U8(3)), (0.05, U8(9)), (0.01, I8(0)), (0.5, U8(4)), (0.07, U8(4))


def unary(op, *, x=X, y=Y2, like=BYTES, **attributes):
    net = Net()
    result = net.quantize(net.op(op, net.dequantize("x", *x), **attributes), *y)
    return net.model({"x": like}, result)


def conv(*, x=X, w=None, w_grid=W, y=Y, bias=None, axis=0, **attributes):
    net = Net()
    weight = integers(RNG, np.asarray(w_grid[1]).dtype.type, (6, 4, 3, 3)) if w is None else w
    data = net.dequantize("x", *x)
    result = net.op("Conv", data, net.dequantize(weight, *w_grid, axis=axis), bias, **attributes)
    like = BYTES.astype(np.asarray(x[1]).dtype)
    return net.model({"x": like}, net.quantize(result, *y))


def matmul(*, a=X, b_grid=W, y=Y, shape=(5, 6), axis=1):
    net = Net()
    b = integers(RNG, np.asarray(b_grid[1]).dtype.type, shape)
    product = net.op("MatMul", net.dequantize("a", *a), net.dequantize(b, *b_grid, axis=axis))
    return net.model({"a": np.zeros((*shape[:-2], 2, 5), np.asarray(a[1]).dtype)}, net.quantize(product, *y))


def gemm(*, quantize=True, bias=None, **attributes):
    net = Net()
    b = net.dequantize(integers(RNG, I8, (5, 6)), 0.01, I8(0))
    result = net.op("Gemm", net.dequantize("a", 0.02, U8(3)), b, bias, **attributes)
    return net.model({"a": np.zeros((2, 5), U8)}, net.quantize(result, 0.5, U8(4)) if quantize else result)


def pair(op, a=X, b=X2, y=Y2, shape=(2, 8), **attributes):
    net, like = Net(), np.zeros(shape, np.asarray(a[1]).dtype)
    operands = net.dequantize("a", *a), net.dequantize("b", *b)
    before = ["c"] if op == "Where" else []
    result = net.quantize(net.op(op, *before, *operands, **attributes), *y)
    feeds = {"a": like, "b": like.astype(np.asarray(b[1]).dtype)}
    return net.model(({"c": np.ones(shape, bool)} if before else {}) | feeds, result)


def averaged(ratio):
    """A mean of four elements whose scale is `ratio` times that of the output: 256 for each of them are too many."""
    return unary("GlobalAveragePool", y=(X[0] / ratio, U8(4)), like=np.zeros((1, 4, 2, 2), U8))


TWELVE = np.arange(6, dtype=F32)


def off_by(share):
    """Biases that lie `share` of a step beside the steps of the accumulator, each of which is 0.0002."""
    return ((np.arange(6) * 10 + share) * 0.0002).astype(F32)


def kernel(op):
    return functools.partial(kernel_rule, op)


FIRES = [
    (to_qlinear.ConvToQLinear, conv(), ["QLinearConv"]),
    (to_qlinear.ConvToQLinear, conv(bias=TWELVE, pads=[1, 1, 1, 1], strides=[2, 2]), ["QLinearConv"]),
    (to_qlinear.ConvToQLinear, conv(bias=off_by(0.24), y=(1e-4, U8(4))), ["QLinearConv"]),
    (to_qlinear.MatMulToQLinear, matmul(), ["QLinearMatMul"]),
    (to_qlinear.MatMulToQLinear, matmul(shape=(3, 5, 6)), ["QLinearMatMul"]),
    (to_qlinear.GemmToQGemm, gemm(bias=TWELVE), ["QGemm"]),
    (to_qlinear.GemmToFloatQGemm, gemm(quantize=False), ["QGemm"]),
    (kernel("Add"), pair("Add"), ["QLinearAdd"]),
    (kernel("Mul"), pair("Mul"), ["QLinearMul"]),
    (kernel("Sigmoid"), unary("Sigmoid"), ["QLinearSigmoid"]),
    (kernel("LeakyRelu"), unary("LeakyRelu", alpha=0.2), ["QLinearLeakyRelu"]),
    (kernel("Softmax"), unary("Softmax", y=(1 / 256, U8(0)), axis=1), ["QLinearSoftmax"]),
    (kernel("AveragePool"), unary("AveragePool", kernel_shape=[2, 2]), ["QLinearAveragePool"]),
    (
        kernel("AveragePool"),
        unary("AveragePool", kernel_shape=[2, 2], dilations=[1, 1]),
        ["QLinearAveragePool"],
    ),
    (kernel("GlobalAveragePool"), unary("GlobalAveragePool"), ["QLinearGlobalAveragePool"]),
    (kernel("GlobalAveragePool"), averaged(1020), ["QLinearGlobalAveragePool"]),
    (to_qlinear.ConcatToQLinear, pair("Concat", axis=1), ["QLinearConcat"]),
    (to_qlinear.WhereToQLinear, pair("Where"), ["QLinearWhere"]),
]
SCALES = np.linspace(0.01, 0.02, 6).astype(F32)
REFUSES = [
    (to_qlinear.ConvToQLinear, conv(x=(0.02, U16(3)), y=(0.5, U16(4))), "input is uint16: integer kernels take"),
    (to_qlinear.ConvToQLinear, conv(y=(0.5, I8(4))), "output is int8, unlike input"),
    (
        to_qlinear.ConvToQLinear,
        conv(x=(0.02, I8(3)), y=(0.5, I8(4)), w_grid=(0.01, U8(0))),
        "int8 activations by uint8",
    ),
    (to_qlinear.ConvToQLinear, conv(w_grid=(SCALES[:4], np.zeros(4, I8)), axis=1), "of axis 1, not of axis 0"),
    (
        to_qlinear.ConvToQLinear,
        conv(w=integers(RNG, I8, (6, 1, 3, 3)), w_grid=(SCALES, np.arange(6, dtype=I8)), group=4),
        "distinct zero points have no fast kernel",
    ),
    (to_qlinear.ConvToQLinear, conv(bias=np.full(6, 1e9, F32)), "more than int32 holds"),
    (
        to_qlinear.ConvToQLinear,
        conv(bias=TWELVE + F32(0.00007), y=(1e-5, U8(4))),
        "more than half a step of the output",
    ),
    (
        to_qlinear.ConvToQLinear,
        conv(bias=off_by(0.26), y=(1e-4, U8(4))),
        "would move by 5.20004e-05, more than half a step",
    ),
    (to_qlinear.ConvToQLinear, conv(w_grid=(0.0, I8(0))), "not a positive number"),
    (to_qlinear.MatMulToQLinear, matmul(b_grid=(SCALES[:5], np.zeros(5, I8)), axis=0), "of axis 0, not of axis 1"),
    (
        to_qlinear.MatMulToQLinear,
        matmul(b_grid=(SCALES, np.zeros(6, I8)), shape=(3, 5, 6), axis=2),
        "needs a matrix, and the second operand has rank 3",
    ),
    (to_qlinear.GemmToQGemm, gemm(bias=np.ones((2, 6), F32)), "not one number for each of 6 channels"),
    (to_qlinear.GemmToFloatQGemm, gemm(), "its output goes to a grid"),
    (to_qlinear.ConvToQLinear, conv(y=(1e-9, U8(4))), "float32 between DQ and Q tells 16777216 apart"),
    (to_qlinear.MatMulToQLinear, matmul(y=(1e-9, U8(4))), "float32 between DQ and Q tells 16777216 apart"),
    (kernel("Add"), pair("Add", y=(1e-6, U8(4))), "steps of the output, and float32 loses some"),
    (kernel("Mul"), pair("Mul", y=(1e-9, U8(4))), "more than kernels hold in int32"),
    (kernel("AveragePool"), unary("AveragePool", y=(1e-9, U8(4)), kernel_shape=[2, 2]), "hold in int32"),
    (kernel("GlobalAveragePool"), unary("GlobalAveragePool", y=(1e12, U8(4))), "the kernel takes 2^-32 to"),
    (kernel("GlobalAveragePool"), averaged(1030), "256 times the number of elements"),
    (kernel("Add"), pair("Add", b=(0.05, I8(9))), "second is int8, unlike first"),
    (kernel("Mul"), pair("Mul", a=(0.02, U16(3)), b=(0.02, U16(3)), y=(0.02, U16(3))), "first is uint16"),
    (kernel("Sigmoid"), unary("Sigmoid", x=(np.full(4, 0.02, F32), np.full(4, 3, U8))), "4 numbers, not one"),
    (kernel("LeakyRelu"), unary("LeakyRelu", y=(0.03, I8(4))), "output is int8, unlike input"),
    (
        kernel("Softmax"),
        unary("Softmax", y=(1 / 255, U8(0))),
        "1/y_scale is 255: the kernel is right for 256",
    ),
    (
        kernel("Softmax"),
        unary("Softmax", y=(1 / 256, U8(0)), like=np.zeros((4, 1), U8)),
        "the axis has one element",
    ),
    (kernel("AveragePool"), unary("AveragePool", kernel_shape=[2, 2], dilations=[2, 2]), "no dilations"),
    (
        kernel("AveragePool"),
        unary("AveragePool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, count_include_pad=1),
        "divide by other counts",
    ),
    (kernel("GlobalAveragePool"), unary("GlobalAveragePool", y=(0.03, I8(4))), "unlike input"),
    (to_qlinear.ConcatToQLinear, pair("Concat", b=(0.05, I8(9)), axis=1), "input 1 is int8, unlike output"),
    (to_qlinear.WhereToQLinear, pair("Where", y=(0.07, I8(4))), "output is int8, unlike first"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "__name__", None))
def test_an_operator_between_grids_becomes_one_on_integers(rule, model, left):
    assert fired(rule(), model) == left


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "__name__", None))
def test_what_no_kernel_computes_stays_and_says_why(rule, model, reason):
    assert reason in refused(rule(), model)


@pytest.mark.parametrize(
    ("rule", "model"), [row[:2] for row in FIRES], ids=lambda item: getattr(item, "__name__", None)
)
def test_a_grid_in_float16_has_no_kernel(rule, model):
    half = model.clone()
    for scale in {node.inputs[1] for node in half.graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")}:
        scale.const_value = ir.tensor(scale.const_value.numpy().astype(np.float16))
        scale.type = ir.TensorType(ir.DataType.FLOAT16)  # of its own: a clone shares that of the original
    assert "is float16: integer kernels take float32" in refused(rule(), half)


def test_a_global_pool_of_a_matrix_has_no_kernel():
    model = unary("GlobalAveragePool")
    model.graph.inputs[0].shape = None
    assert "rank 3 or more" in refused(kernel_rule("GlobalAveragePool"), model)


def test_an_accumulator_that_int32_may_not_hold_is_refused_with_its_size():
    w = np.full((1, 4, 300, 300), -128, I8)
    net = Net()
    result = net.op("Conv", net.dequantize("x", 0.02, U8(0)), net.dequantize(w, 0.01, I8(0)))
    model = net.model({"x": np.zeros((1, 4, 300, 300), U8)}, net.quantize(result, 100.0, U8(0)))
    assert "accumulators may reach 11750400000" in refused(to_qlinear.ConvToQLinear(), model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    rules = {rule.name for rule in rules_of(to_qlinear)}
    assert rules == {row[0]().name for row in FIRES} == {row[0]().name for row in REFUSES}


def test_what_has_other_uses_in_float_stays():
    net = Net()
    data = net.op("Sigmoid", net.dequantize("x", 0.02, U8(3)))
    model = net.model({"x": np.zeros(4, U8)}, net.quantize(data, 0.03, U8(4)), net.op("Neg", data))
    assert not rewriter.apply(model.clone(), rules_of(to_qlinear)).applications


@pytest.mark.parametrize(("act", "zero"), list(itertools.product((U8, I8), (0, 128, 255))))
def test_concat_and_where_are_exact_in_the_runtime_for_every_level(act, zero):
    zero = act(zero + np.iinfo(act).min)
    for model in (
        pair("Concat", a=(0.013, zero), b=(0.021, act(3)), y=(0.017, act(5)), shape=(1, 256), axis=1),
        pair("Where", a=(0.013, zero), b=(0.021, act(3)), y=(0.017, act(5)), shape=(1, 256)),
    ):
        done = rewriter.apply(model.clone(), rules_of(to_qlinear)).model
        feeds = {"a": every_level(act, (1, 256)), "b": every_level(act, (1, 256))[:, ::-1].copy()}
        if len(model.graph.inputs) == 3:
            feeds["c"] = RNG.random((1, 256)) < 0.5
        name = model.graph.outputs[0].name
        assert np.array_equal(ort_cpu.run(model, feeds)[name], ort_cpu.run(done, feeds)[name])


@pytest.mark.parametrize("op", ["Add", "Mul", "Concat", "Where"])
def test_kernels_get_scalars_where_the_grids_of_q_and_dq_have_shape_1(op):
    """ONNX Runtime refuses a QLinearAdd or QLinearMul with scales of shape [1]."""
    grids = [(np.array([scale], F32), np.array([zero], U8)) for scale, zero in ((0.02, 3), (0.05, 9), (0.07, 4))]
    model = pair(op, *grids, **({"axis": 1} if op == "Concat" else {}))
    done = rewriter.apply(model.clone(), rules_of(to_qlinear)).model
    feeds = {value.name: np.ones(value.shape.numpy(), value.dtype.numpy()) for value in model.graph.inputs}
    name = model.graph.outputs[0].name
    assert [node.op_type for node in done.graph] == [f"QLinear{op}"]
    assert np.array_equal(ort_cpu.run(model, feeds)[name], ort_cpu.run(done, feeds)[name])
