"""Clips, differences and signs change their form where a kernel gains, and never an integer."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching import rewriter
from intact.rules.quantized import families, integer_forms, operator_signs, signs
from intact.rules.quantized.families import FAMILIES
from intact.runtime import host_cpu, ort_cpu
from intact.targets.registry import load_target
from tests.builder import Net
from tests.kernels import exact
from tests.rules.proof.harness import fired, integers, prove, refused
from tests.rules.proof.interpreter import evaluate
from tests.rules.quantized.cases import integer_forms as cases

MICROSOFT = "com.microsoft"
U8, I8, U16, F32 = np.uint8, np.int8, np.uint16, np.float32
RNG = np.random.default_rng(0)
X = np.zeros(8, F32)
# The columns are the channels.
SMALL, LARGE = I8([[64, -64], [0, 1]]), I8([[100, 0], [100, 1]])
ZERO, FIRST, SECOND, LAST = I8(3), (0.02, U8(3)), (0.05, U8(9)), (0.02, U8(131))


def clipped(op, zero, *ends, scale=0.1):
    net = Net()
    return net.model({"x": X}, net.quantize(net.op(op, "x", *ends), scale, zero))


def difference(a=FIRST, b=SECOND):
    net = Net()
    feeds = {"a": np.zeros(8, np.asarray(a[1]).dtype), "b": np.zeros(8, np.asarray(b[1]).dtype)}
    return net.model(feeds, net.quantize(net.op("Sub", net.dequantize("a", *a), net.dequantize("b", *b)), 0.1, a[1]))


def activation(zero=ZERO, *, also_integers=False, weight=None):
    net = Net()
    q = net.quantize("x", 0.02, zero)
    y = net.dequantize(q, 0.02, zero)
    if weight is not None:
        y = net.op("MatMul", y, net.dequantize(weight, 0.01, I8(0)))
    return net.model({"x": np.zeros((1, 2), F32)}, y, *([net.op("Identity", q)] if also_integers else []))


def moved_activation(zero=ZERO, *, quantized=True, before=None, move="Transpose", rest=(), **attributes):
    net = Net()
    q = net.quantize("x", 0.02, zero) if quantized else net.op("Identity", "x")
    q = q if before is None else net.op(before, q)
    y = net.dequantize(net.op(move, q, *rest, **attributes), 0.02, zero)
    return net.model({"x": np.zeros((4, 2), F32 if quantized else I8)}, y)


def operand(zero=ZERO, op="Add", scale=0.05, **attributes):
    net = Net()
    constant = net.dequantize(integers(RNG, zero.dtype.type, (8, 8)), scale, zero, **attributes)
    return net.model({"x": np.zeros((8, 8), U8)}, net.op(op, net.dequantize("x", 0.02, U8(3)), constant))


def conversions(last=LAST):
    net = Net()
    return net.model({"x": X}, net.quantize(net.dequantize(net.quantize("x", 0.5, I8(3)), 0.02, I8(3)), *last))


def product(a, b, *, inside=True, constant=True, width=2):
    net, weight = Net(), integers(RNG, b, (2, width))
    data = net.op("Identity", "a") if inside else "a"
    grid = F32(0.5), a(3)
    y = net.op("QLinearMatMul", data, F32(0.02), a(3), weight if constant else "b", F32(0.01), b(0), *grid)
    feeds = {"a": np.zeros((2, 2), a)} | ({} if constant else {"b": weight})
    return net.model(feeds, y)


def wide_product(*, a=U8, most=65, constant=True, known=True):
    """A product by weights of which two add up to 2 · `most`: with 64 the sums of two products just fit in 16 bits."""
    net, weight, zero = Net(), np.full((2, 3), most, I8), np.asarray(I8(0))
    given = weight if constant else "b", F32(0.01), zero if known else "z"
    y = net.op("QLinearMatMul", "a", F32(0.02), a(3), *given, F32(0.5), a(3))
    feeds = {"a": np.zeros((2, 2), a)} | ({} if constant else {"b": weight}) | ({} if known else {"z": zero})
    return net.model(feeds, y)


def signed_pair(op="QLinearAdd", *, converted=True, **attributes):
    net = Net()
    x = cases.convert(net, "a", 0.02, np.asarray(I8(3))) if converted else "a"
    grid = F32(0.05), I8(-7)
    inputs = (x, F32(0.02), I8(3), "b", *grid)
    given = (*grid, *inputs) if op == "QLinearConcat" else (*inputs, *grid)
    feeds = {"a": np.zeros((4, 4), U8 if converted else I8), "b": np.zeros((4, 4), I8)}
    return net.model(feeds, net.op(op, *given, _domain=MICROSOFT, **attributes))


def rescaled():
    """An operand that was uint8 before, but on another scale."""
    net = Net()
    x = net.quantize(net.dequantize("a", 0.03, U8(131)), 0.02, I8(3))
    y = net.op("QLinearSigmoid", x, F32(0.02), I8(3), F32(0.05), I8(-7), _domain=MICROSOFT)
    return net.model({"a": np.zeros((4, 4), U8)}, y)


def mixed():
    """An operand that was uint8 before, and a grid of the output that is uint8 already."""
    net = Net()
    x = cases.convert(net, "a", 0.02, np.asarray(I8(3)))
    y = net.op("QLinearSigmoid", x, F32(0.02), I8(3), F32(0.05), U8(7), _domain=MICROSOFT)
    return net.model({"a": np.zeros((4, 4), U8)}, y)


def second(dtype=U8):
    net = Net()
    b = net.op("Transpose", net.quantize("b", 0.05, dtype(9)))
    grid = F32(0.5), U8(3)
    y = net.op("QLinearMatMul", "a", F32(0.02), U8(3), b, F32(0.05), dtype(9), *grid)
    return net.model({"a": np.zeros((2, 3), U8), "b": np.zeros((4, 3), F32)}, y)


def moved_twice():
    """A second operand behind two moves, of which the last leaves its axes out explicitly."""
    net = Net()
    b = net.op("Squeeze", net.op("Identity", net.quantize("b", 0.05, U8(9))))
    y = net.op("QLinearMatMul", "a", F32(0.02), U8(3), b, F32(0.05), U8(9), F32(0.5), U8(3))
    model = net.model({"a": np.zeros((2, 3), U8), "b": np.zeros((1, 3, 4), F32)}, y)
    next(node for node in model.graph if node.op_type == "Squeeze").resize_inputs(2)
    return model


CONVERT = ["DequantizeLinear", "QuantizeLinear"]
FIRES = [
    (integer_forms.ReluToIntegerClip(), clipped("Relu", U8(7)), ["QuantizeLinear", "Clip"]),
    (integer_forms.ClipToIntegerClip(), clipped("Clip", U8(7), F32(0), F32(6)), ["QuantizeLinear", "Clip"]),
    (
        integer_forms.SubToAdd(),
        difference(),
        ["BitwiseNot", "DequantizeLinear", "DequantizeLinear", "Add", "QuantizeLinear"],
    ),
    (signs.UnsignActivation(), activation(), ["QuantizeLinear", "DequantizeLinear"]),
    (signs.UnsignMovedActivation(), moved_activation(), ["QuantizeLinear", "Transpose", "DequantizeLinear"]),
    (
        signs.UnsignMovedActivation(),
        moved_activation(before="Flatten"),
        ["QuantizeLinear", "Flatten", *CONVERT, "Transpose", "DequantizeLinear"],
    ),
    (
        signs.UnsignMovedActivation(),
        moved_activation(move="Clip", rest=(I8(3), I8(90))),
        ["QuantizeLinear", "Clip", "DequantizeLinear"],
    ),
    (signs.UnsignConstant(), operand(), ["DequantizeLinear", "DequantizeLinear", "Add"]),
    (signs.JoinShiftedGrids(), conversions(), ["QuantizeLinear"]),
    (operator_signs.UnsignProduct(), product(I8, I8), ["Identity", *CONVERT, "QLinearMatMul", *CONVERT]),
    (
        operator_signs.UnsignProduct(worth_converting=64),
        product(I8, I8, inside=False, width=64),
        [*CONVERT, "QLinearMatMul", *CONVERT],
    ),
    (operator_signs.UnsignOperator(), signed_pair(), [*CONVERT, *CONVERT, *CONVERT, "QLinearAdd", *CONVERT]),
    (operator_signs.UnsignConcat(), signed_pair("QLinearConcat", axis=0), [*CONVERT * 3, "QLinearConcat", *CONVERT]),
    (operator_signs.SignWeight(), product(U8, U8), ["Identity", "QLinearMatMul"]),
    (operator_signs.MatchWeightSign(), product(I8, U8), ["Identity", "QLinearMatMul"]),
    (operator_signs.MatchWeightSign(), product(I8, U8, constant=False), ["Identity", *CONVERT, "QLinearMatMul"]),
    (operator_signs.UnsignWeight(), wide_product(), ["QLinearMatMul"]),
    (
        operator_signs.SignSecondOperand(),
        moved_twice(),
        ["QuantizeLinear", "Identity", "Squeeze", "QLinearMatMul"],
    ),
    (operator_signs.SignSecondOperand(), second(), ["QuantizeLinear", "Transpose", "QLinearMatMul"]),
]
SATURATES = "uint8 x int8 saturates without VNNI"
REFUSES = [
    (integer_forms.ReluToIntegerClip(), clipped("Relu", U8(0)), "the grid clips there itself"),
    (integer_forms.ReluToIntegerClip(), clipped("Relu", U16(7)), "output is uint16"),
    (integer_forms.ClipToIntegerClip(), clipped("Clip", U8(0), F32(0), F32(25.5)), "the grid clips there itself"),
    (integer_forms.SubToAdd(), difference(b=(0.05, I8(9))), "second is int8, unlike first"),
    (signs.UnsignActivation(), activation(U8(3)), "the activation is not int8"),
    (signs.UnsignActivation(), activation(also_integers=True), "its integers go to other nodes"),
    (signs.UnsignActivation(saturates=True), activation(weight=LARGE), "may reach 51000, more than 32767"),
    (signs.UnsignMovedActivation(), moved_activation(U8(3)), "the activation is not int8"),
    (signs.UnsignMovedActivation(), moved_activation(quantized=False), "was not quantized just before"),
    (
        signs.UnsignMovedActivation(),
        moved_activation(move="Resize", rest=(None, F32([1, 2])), mode="linear"),
        "this Resize computes values that it is not given",
    ),
    (signs.UnsignConstant(), operand(U8(3)), "the constant is not int8"),
    (
        signs.UnsignConstant(),
        operand(np.full(8, 3, I8), scale=np.full(8, 0.05), axis=0),
        "constant has 8 numbers, not one constant scale",
    ),
    (signs.UnsignConstant(), operand(op="MatMul"), "it does not stand beside an activation in uint8"),
    (signs.JoinShiftedGrids(), conversions((0.02, U8(130))), "the grids differ"),
    (signs.JoinShiftedGrids(), conversions((0.02, I8(3))), "the types are not int8 and uint8"),
    (operator_signs.UnsignProduct(), product(U8, I8), "it is not a product of int8 with int8"),
    (operator_signs.UnsignProduct(), product(I8, I8, inside=False, width=64), "comes from outside as int8"),
    (
        operator_signs.UnsignProduct(worth_converting=64),
        product(I8, I8, inside=False, width=63),
        "comes from outside as int8, and little is computed with it",
    ),
    (operator_signs.UnsignProduct(saturates=True), product(I8, I8, constant=False), SATURATES),
    (operator_signs.UnsignOperator(), signed_pair(converted=False), "no operand was uint8 before"),
    (operator_signs.UnsignOperator(), rescaled(), "no operand was uint8 before"),
    (operator_signs.UnsignOperator(), mixed(), "it does not compute on int8"),
    (
        operator_signs.UnsignConcat(),
        signed_pair("QLinearConcat", converted=False, axis=0),
        "no operand was uint8 before",
    ),
    (operator_signs.MatchWeightSign(), product(I8, I8), "it is not a product of int8 with uint8"),
    (operator_signs.MatchWeightSign(), product(U8, U8), "it is not a product of int8 with uint8"),
    (operator_signs.SignWeight(), product(U8, I8), "not a product of uint8 activations with a constant uint8 weight"),
    (operator_signs.SignWeight(), product(U8, U8, constant=False), "with a constant uint8 weight"),
    (operator_signs.UnsignWeight(), wide_product(a=I8), "not a product of uint8 activations with a constant int8"),
    (operator_signs.UnsignWeight(), wide_product(constant=False), "with a constant int8 weight"),
    (operator_signs.UnsignWeight(), wide_product(known=False), "the zero point of the weight is computed"),
    (operator_signs.UnsignWeight(), wide_product(most=64), "its sums of two products stay within 16 bits"),
    (operator_signs.UnsignWeight(saturates=False), wide_product(), "its sums of two products stay within 16 bits"),
    (operator_signs.SignSecondOperand(), second(I8), "it is not a product of uint8 with uint8"),
    (operator_signs.SignSecondOperand(saturates=True), second(), SATURATES),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES, ids=lambda item: getattr(item, "name", None))
def test_a_form_that_kernels_like_better_is_taken(rule, model, left):
    assert sorted(fired(rule, model)) == sorted(left)


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES, ids=lambda item: getattr(item, "name", None))
def test_a_form_that_gains_nothing_or_saturates_is_refused(rule, model, reason):
    assert reason in refused(rule, model)


def test_every_rule_is_tested_to_fire_and_to_refuse():
    rules = {type(rule) for rule in FAMILIES["integer_forms"]}
    assert rules == {type(row[0]) for row in FIRES} == {type(row[0]) for row in REFUSES}


UNSIGNED = {case.label: case for case in cases.unsigned_operator(np.random.default_rng(1))}


@pytest.mark.parametrize("label", UNSIGNED)
def test_every_operator_computes_on_uint8_what_it_did_on_int8(label):
    """The grids stand at other places among the inputs of each."""
    model = UNSIGNED[label].model
    assert prove(operator_signs.UnsignOperator(), UNSIGNED[label]) > 0
    done = rewriter.apply(model.clone(), [operator_signs.UnsignOperator()]).model
    (operator,) = (node for node in done.graph if node.op_type.startswith("QLinear"))
    assert operator.outputs[0].dtype.name == "UINT8" and operator.outputs[0].shape == model.graph.outputs[0].shape


def any_product(op, weight, x, w, y):
    """QLinearConv, QLinearMatMul, QGemm or MatMulIntegerToFloat of the same matrices."""
    net = Net()
    a = net.op("Identity", "a")
    if op == "QLinearConv":
        shape = np.zeros((5, 4, 1), x[1].dtype)
        return net.model({"a": shape}, net.op(op, a, *x, weight.T[:, :, None].copy(), *w, *y))
    given = (weight, x[0], w[0], x[1], w[1]) if op == "MatMulIntegerToFloat" else (*x, weight, *w)
    bias = [None] if op == "QGemm" else []
    grid = [] if op == "MatMulIntegerToFloat" else [*bias, *y]
    domain = "" if op == "QLinearMatMul" else MICROSOFT
    return net.model({"a": np.zeros((5, 4), x[1].dtype)}, net.op(op, a, *given, *grid, _domain=domain))


def test_a_second_operand_in_int8_is_moved_as_it_was_in_uint8():
    """A Reshape by a shape, then a Transpose: (a - 3) · (b - 9) of numpy, whichever sign b has on its way."""
    net, a, b = Net(), integers(RNG, U8, (2, 3)), RNG.normal(0, 3, 12).astype(F32)
    moved = net.op("Transpose", net.op("Reshape", net.quantize("b", 0.05, U8(9)), np.array([4, 3])), perm=[1, 0])
    y = net.op("QLinearMatMul", "a", F32(0.02), U8(3), moved, F32(0.05), U8(9), F32(0.06), U8(90))
    done = rewriter.apply(net.model({"a": a, "b": b}, y), [operator_signs.SignSecondOperand()])
    assert [item.rule for item in done.applications] == ["sign_second_operand"]
    levels = np.clip(np.rint(b.astype(np.float64) / 0.05) + 9, 0, 255).reshape(4, 3).T
    result = np.rint((a.astype(int) - 3) @ (levels - 9) * 0.02 * 0.05 / 0.06) + 90
    assert np.array_equal(evaluate(done.model, {"a": a, "b": b})[y], np.clip(result, 0, 255))
    types = {node.op_type: node.outputs[0].dtype.name for node in done.model.graph}
    assert {types["Reshape"], types["Transpose"]} == {"INT8"}


@pytest.mark.parametrize("op", ["QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "QLinearConv"])
@pytest.mark.parametrize(
    ("rule", "dtype"), [(operator_signs.SignWeight(), U8), (operator_signs.UnsignProduct(), I8)], ids=["sign", "unsign"]
)
def test_a_product_in_other_signs_is_the_one_that_numpy_gives(rule, dtype, op):
    """Activations in uint8 and weights in int8 come out, and (x - 3) · (w - 5) summed up, whatever the form."""
    a, weight = integers(RNG, dtype, (5, 4)), integers(RNG, dtype, (4, 6))
    model = any_product(op, weight, (F32(0.02), dtype(3)), (F32(0.01), dtype(5)), (F32(0.05), dtype(9)))
    feeds = {"a": a.reshape(model.graph.inputs[0].shape.numpy())}
    done = rewriter.apply(model.clone(), [rule])
    assert [item.rule for item in done.applications] == [rule.name]
    node = next(node for node in done.model.graph if node.op_type == op)
    data, weights = node.inputs[0], node.inputs[1 if op == "MatMulIntegerToFloat" else 3]
    assert (data.dtype.name, weights.dtype.name) == ("UINT8", "INT8")
    (found,) = evaluate(done.model, feeds).values()
    real = 0.02 * 0.01 * ((a.astype(int) - 3) @ (weight.astype(int) - 5))
    if op == "MatMulIntegerToFloat":
        np.testing.assert_allclose(found, real, rtol=1e-6)
    else:
        info = np.iinfo(dtype)
        assert np.array_equal(found.reshape(5, 6), np.clip(np.rint(real / 0.05) + 9, info.min, info.max))


def test_small_weights_cannot_saturate_and_are_taken_without_vnni():
    assert fired(signs.UnsignActivation(saturates=True), activation(weight=SMALL))
    assert SATURATES in refused(signs.UnsignActivation(saturates=True), activation(weight=LARGE))


def test_what_the_user_assumes_of_vnni_decides():
    asked = {vnni: load_target("cpu", vnni=vnni) for vnni in (True, False)}
    fires = {vnni: families.rewrite(activation(weight=LARGE), target).applications for vnni, target in asked.items()}
    assert "unsign_activation" in {item.rule for item in fires[True]}
    assert "unsign_activation" not in {item.rule for item in fires[False]}
    assert not load_target("qnn", vnni=False).rewrite.saturates


@pytest.mark.parametrize(
    ("machine", "flags", "saturates"),
    [
        ("x86_64", "fpu avx2 avx512_vnni", False),
        ("x86_64", "fpu avx2 avx_vnni", False),
        ("AMD64", "fpu avx2 avx512f", True),
        ("x86_64", None, True),
        ("aarch64", "", False),
    ],
)
def test_vnni_is_read_from_what_the_system_says_of_its_processor(tmp_path, monkeypatch, machine, flags, saturates):
    file = tmp_path / "cpuinfo"
    if flags is not None:
        file.write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(host_cpu, "_CPUINFO", file)
    monkeypatch.setattr(host_cpu.platform, "machine", lambda: machine)
    assert host_cpu.adds_pairs_in_16_bits.__wrapped__() is saturates


@pytest.mark.parametrize("quantized", ["qdq", "qlinear"])
def test_a_residual_block_in_int8_becomes_uint8_throughout(quantized):
    """Whatever the form it comes in, conversions cancel out, and the integers of the result stay."""
    model = residual(quantized)
    result = families.rewrite(model, load_target("cpu", vnni=True))
    left = [node.op_type for node in result.model.graph]
    assert left.count("QuantizeLinear") == 1 and left.count("DequantizeLinear") == 1
    types = {value.dtype for node in result.model.graph for value in node.inputs if value and not value.const_value}
    assert "INT8" not in {dtype.name for dtype in types if dtype is not None}
    feeds = {"x": RNG.normal(0, 1, (1, 8, 6, 6)).astype(F32)}
    name = model.graph.outputs[0].name
    before, after = ort_cpu.run(model, feeds)[name], ort_cpu.run(result.model, feeds)[name]
    assert np.abs(before - after).max() <= 0.05 * 1.001


def residual(form):
    net = Net()
    grid = F32(0.05), I8(-3)
    q = net.quantize("x", *grid)
    weights = [integers(RNG, I8, (8, 8, 3, 3)) // I8(8) for _ in range(2)]
    for weight in weights:
        if form == "qdq":
            real = net.dequantize(q, *grid)
            conv = net.op("Conv", real, net.dequantize(weight, 0.01, I8(0)), pads=[1, 1, 1, 1])
            inner = net.dequantize(net.quantize(conv, *grid), *grid)
            q = net.quantize(net.op("Add", inner, real), *grid)
        else:
            inner = net.op("QLinearConv", q, *grid, weight, F32(0.01), I8(0), *grid, pads=[1, 1, 1, 1])
            q = net.op("QLinearAdd", inner, *grid, q, *grid, *grid, _domain=MICROSOFT)
    return net.model({"x": np.zeros((1, 8, 6, 6), F32)}, net.dequantize(q, *grid))


def test_a_constant_goes_both_ways_to_the_bit():
    levels = np.arange(256).astype(U8)
    assert np.array_equal(signs.shifted(levels).astype(int), levels.astype(int) - 128)
    assert np.array_equal(signs.shifted(signs.shifted(levels)), levels)


def test_rewriting_twice_changes_nothing():
    target = load_target("cpu", vnni=True)
    once = families.rewrite(residual("qlinear"), target).model
    assert not families.rewrite(once, target).applications
    assert not rewriter.apply(once.clone(), FAMILIES["integer_forms"]).applications


@pytest.mark.parametrize("zero", [0, 3, -128])
def test_a_residual_block_with_relu_in_int8_is_uint8_throughout(zero):
    """Relu on a grid that goes below 0 is a Clip of integers, which must not keep its int8."""
    net, grid = Net(), (0.05, I8(zero))
    x = net.dequantize(net.quantize("x", *grid), *grid)
    conv = net.op("Conv", x, net.dequantize(integers(RNG, I8, (4, 4, 3, 3)), 0.002, I8(0)), pads=[1] * 4)
    relu = net.dequantize(net.quantize(net.op("Relu", conv), *grid), *grid)
    y = net.dequantize(net.quantize(net.op("Add", relu, x), *grid), *grid)
    model = net.model({"x": np.zeros((1, 4, 6, 6), F32)}, y)
    done = families.rewrite(model, load_target("cpu", vnni=True)).model
    ops = [node.op_type for node in done.graph]
    assert {"QLinearConv", "QLinearAdd"} < set(ops) and not {"Conv", "Add", "Relu"} & set(ops)
    assert ops.count("QuantizeLinear") == ops.count("DequantizeLinear") == 1
    assert not [
        node for node in done.graph for value in node.outputs if value.dtype is not None and value.dtype.name == "INT8"
    ]
    feeds = {"x": RNG.normal(0, 3, (1, 4, 6, 6)).astype(F32)}
    assert np.abs(ort_cpu.run(model, feeds)[y] - ort_cpu.run(exact(done), feeds)[y]).max() <= 0.051
