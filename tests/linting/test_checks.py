"""What is wrong whatever the runtime: biases, scales, missing and useless quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from intact.errors import ModelError
from intact.events import Log
from intact.linting import linter, repairs
from intact.model import io
from intact.pipeline import loading
from intact.runtime import ort_cpu
from intact.settings.config import BuildConfig
from tests.builder import Net
from tests.linting.wrong import CASES as WRONG
from tests.linting.wrong import feeds, s8, s32, u8, weight

LARGEST = 2**31 - 1


def conv_with_bias(stored: int, *, kernel: int = 1) -> ir.Model:
    """A Conv whose weights are `kernel` in each of 9 places, and whose input is up to 128 from its zero point."""
    g = Net()
    w = g.dequantize(g.constant(np.full((1, 1, 3, 3), kernel, s8)), 2.0**-10, s8(0))
    b = g.dequantize(g.constant(np.array([stored], s32)), 2.0**-15, s32(0))
    y = g.op("Conv", g.qdq(g.input("x", [1, 1, 8, 8]), 2.0**-5, u8(128)), w, b)
    return g.normalized(g.qdq(y, 512.0, u8(128)))


def qlinear_conv(stored: int) -> ir.Model:
    g = Net()
    x = g.quantize(g.input("x", [1, 1, 8, 8]), 0.1, u8(0))
    w = g.constant(np.ones((1, 1, 3, 3), s8))
    one = g.constant(np.float32(0.1))
    inputs = [x, one, g.constant(u8(0)), w, one, g.constant(s8(0)), one, g.constant(u8(0))]
    y = g.op("QLinearConv", *inputs, g.constant(np.array([stored], s32)))
    return g.normalized(g.dequantize(y, 0.1, u8(0)))


def shared_bias(second: float, *, one: bool = False) -> ir.Model:
    """Two Convs with one bias, behind one DequantizeLinear grid or each behind its own."""
    g = Net()
    w, stored = g.dequantize(g.constant(weight(4, 4, 1, 1)), 2.0**-7, s8(0)), g.constant(np.arange(4).astype(s32))
    x = g.qdq(g.input("x", [1, 4, 4, 4]), 2.0**-5, u8(128))
    for scale, after in ((2.0**-5, second), (second, 1.0)):
        bias = g.dequantize(stored, (2.0**-5 if one else scale) * 2.0**-7, s32(0))
        x = g.qdq(g.op("Conv", x, w, bias), after, u8(128))
    return g.normalized(x)


def scaled(scale: float) -> ir.Model:
    g = Net()
    return g.normalized(g.qdq(g.input("x", [4]), scale, u8(0)))


def chain(*, middle: bool, between: tuple[str, ...] = ()) -> ir.Model:
    """Two quantized Convs, with a Q/DQ pair on the tensor between them or not."""
    g = Net()
    w = g.dequantize(g.constant(weight(4, 4, 1, 1)), 2.0**-7, s8(0))
    x = g.op("Conv", g.qdq(g.input("x", [1, 4, 4, 4]), 2.0**-5, u8(128)), w)
    for op in between:
        x = g.op(op, x)
    x = g.qdq(x, 2.0**-3, u8(128)) if middle else x
    return g.normalized(g.qdq(g.op("Conv", x, w), 1.0, u8(128)))


def read_in_float(*, result: bool, weights: int = 1, before: str | None = None) -> ir.Model:
    """Products of a float tensor and of quantized weights, perhaps quantized, perhaps behind a quantized operator."""
    g = Net()
    x = g.input("x", [4, 16])
    x = x if before is None else g.op(before, g.qdq(x, 2.0**-5, u8(128)))
    for _ in range(weights):
        x = g.op("MatMul", x, g.dequantize(g.constant(weight(16, 16)), 2.0**-7, s8(0)))
    return g.normalized(g.qdq(x, 1.0, u8(128)) if result else x)


def scaled_in_kernel(op: str) -> ir.Model:
    """An operator on integers with a scale of zero, the last that it has."""
    g = Net()
    x, one, zero = g.quantize(g.input("x", [2, 16]), 0.1, u8(0)), g.constant(np.float32(0.1)), g.constant(u8(0))
    bad = g.constant(np.float32(0))
    if op == "QLinearConcat":
        y = g.op(op, one, zero, x, one, zero, x, bad, zero, _domain="com.microsoft", axis=1)
    else:
        everywhere = g.constant(np.ones((2, 16), bool))
        y = g.op(op, everywhere, x, one, zero, x, one, zero, bad, zero, _domain="com.microsoft")
    return g.normalized(g.dequantize(y, 0.1, u8(0)))


def softmax_kernel(scale: float, *, opset: int = 13) -> ir.Model:
    g = Net()
    x, grid = g.quantize(g.input("x", [2, 5, 6]), 0.1, u8(128)), (g.constant(np.float32(0.1)), g.constant(u8(128)))
    output = g.constant(np.float32(scale)), g.constant(u8(0))
    y = g.op("QLinearSoftmax", x, *grid, *output, _domain="com.microsoft", axis=1, opset=opset)
    return g.normalized(g.dequantize(y, scale, u8(0)))


def where(zero: str, *, kernel: bool) -> ir.Model:
    """A choice between integers; the zero point of the first is of the kind `zero`."""
    g = Net()
    x, y = g.quantize(g.input("x", [2, 16]), 0.1, u8(3)), g.quantize("x", 0.2, u8(5))
    scales = [g.constant(np.float32(scale)) for scale in (0.1, 0.2, 0.15)]
    zeros = [g.constant(u8(number)) for number in (3, 5, 7)]
    condition = g.op("Greater", "x", g.constant(np.float32(1)))
    if zero == "overridden":
        g.inputs.append(helper.make_tensor_value_info(zeros[0], TensorProto.UINT8, []))
    if zero == "input":
        zeros[0] = g.input("z", [])
        g.inputs[-1].type.tensor_type.elem_type = TensorProto.UINT8
    if zero == "folded":
        zeros[0] = g.op("Cast", g.constant(np.float32(3)), to=TensorProto.UINT8)
    operands = x, scales[0], zeros[0], y, scales[1], zeros[1]
    if kernel:
        result = g.op("QLinearWhere", condition, *operands, scales[2], zeros[2], _domain="com.microsoft")
    else:
        first, second = (g.op("DequantizeLinear", *operands[at : at + 3]) for at in (0, 3))
        result = g.op("QuantizeLinear", g.op("Where", condition, first, second), scales[2], zeros[2])
    return g.normalized(g.dequantize(result, 0.15, u8(7)))


def zero_among_scales() -> ir.Model:
    """A weight beside float activations, of which one column has a scale of zero."""
    g = Net()
    w = g.dequantize(g.constant(weight(64, 2)), np.array([0.1, 0.0]), np.zeros(2, s8), axis=1)
    return g.normalized(g.op("MatMul", g.input("x", [4, 64]), w))


def unused(*, pair: bool) -> ir.Model:
    g = Net()
    x = g.input("x", [4])
    quantized = g.quantize(x, 0.1, u8(128))
    if pair:
        g.dequantize(quantized, 0.1, u8(128))
    return g.normalized(g.op("Relu", x))


def float_stored(kind: int | None) -> ir.Model:
    g = Net()
    values = np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8)
    zeros = np.zeros(8, s8) if kind is None else np.zeros(8)
    w = g.qdq(g.constant(values), np.full(8, 1 / 7 if kind else 1 / 127), zeros, kind, axis=1)
    return g.normalized(g.op("MatMul", g.qdq(g.input("x", [4, 16]), 2.0**-12, np.uint16(32768)), w))


def codes(model: ir.Model) -> set[str]:
    return {finding.code for finding in linter.findings(model)}


# 9 products of at most 128 · 1 leave this much for the bias.
ROOM = LARGEST - 9 * 128

CASES: dict[str, tuple[Callable[[], ir.Model], set[str]]] = {
    "a bias that just fits": (lambda: conv_with_bias(ROOM), set()),
    "a bias one unit too large": (lambda: conv_with_bias(ROOM + 1), {"Q111"}),
    "a negative bias that just fits": (lambda: conv_with_bias(-ROOM), set()),
    "a negative bias one unit too large": (lambda: conv_with_bias(-ROOM - 1), {"Q111"}),
    "larger weights leave less room": (lambda: conv_with_bias(ROOM, kernel=2), {"Q111"}),
    "a kernel's bias that fits": (lambda: qlinear_conv(LARGEST - 9 * 255), set()),
    "a kernel's bias one unit too large": (lambda: qlinear_conv(LARGEST - 9 * 255 + 1), {"Q111"}),
    "a bias shared at one scale": (lambda: shared_bias(2.0**-5), set()),
    "a bias shared at two scales": (lambda: shared_bias(2.0**-4), {"Q112"}),
    "a scale of zero": (lambda: scaled(0.0), {"Q113"}),
    "a negative scale": (lambda: scaled(-0.5), {"Q113"}),
    "an infinite scale": (lambda: scaled(np.inf), {"Q113"}),
    "a scale that is no number": (lambda: scaled(np.nan), {"Q113"}),
    "a denormal scale": (lambda: scaled(1e-39), {"Q114"}),
    "the least normal scale": (lambda: scaled(float(np.finfo(np.float32).tiny)), set()),
    "no grid between two Convs": (lambda: chain(middle=False), {"Q115"}),
    "no grid behind a Relu between two Convs": (lambda: chain(middle=False, between=("Relu",)), {"Q115"}),
    "no grid behind a Sigmoid between two Convs": (lambda: chain(middle=False, between=("Sigmoid",)), {"Q115"}),
    "no grid behind a quantized Sigmoid": (lambda: read_in_float(result=True, before="Sigmoid"), {"Q109", "Q115"}),
    "a quantized input that was cut off": (lambda: read_in_float(result=True, before="Relu"), {"Q109"}),
    "an input without a grid": (lambda: read_in_float(result=True), {"Q109", "Q115"}),
    "quantized weights alone": (lambda: read_in_float(result=False, weights=3), {"Q109"}),
    "a scale of zero in QLinearConcat": (lambda: scaled_in_kernel("QLinearConcat"), {"Q113"}),
    "a scale of zero in QLinearWhere": (lambda: scaled_in_kernel("QLinearWhere"), {"Q113"}),
    "a scale of zero in a weight": (zero_among_scales, {"Q113"}),
    "a Softmax kernel at 1/255": (lambda: softmax_kernel(1 / 255), {"Q108"}),
    "a Softmax kernel at 1/256": (lambda: softmax_kernel(1 / 256), set()),
    "a Where with a zero point that an input may override": (lambda: where("overridden", kernel=False), {"Q121"}),
    "a Where with a zero point that is an input": (lambda: where("input", kernel=False), {"Q121"}),
    "a Where with a zero point that is folded": (lambda: where("folded", kernel=False), set()),
    "a Where with constant zero points": (lambda: where("constant", kernel=False), set()),
    "a Where kernel with a zero point that is an input": (lambda: where("input", kernel=True), {"Q121"}),
    "a Where kernel with constant zero points": (lambda: where("constant", kernel=True), set()),
    "a grid between two Convs": (lambda: chain(middle=True), set()),
    "a grid behind a Relu between two Convs": (lambda: chain(middle=True, between=("Relu",)), set()),
    "a QuantizeLinear that nothing uses": (lambda: unused(pair=False), {"Q116"}),
    "a pair that nothing uses": (lambda: unused(pair=True), {"Q116"}),
    "a weight stored as float": (lambda: float_stored(None), {"Q117"}),
    "a 4-bit weight stored as float": (lambda: float_stored(TensorProto.INT4), {"Q117"}),
}


@pytest.mark.parametrize(("build", "expected"), CASES.values(), ids=CASES.keys())
def test_the_check_finds_what_is_wrong_and_nothing_else(build: Callable[[], ir.Model], expected: set[str]) -> None:
    assert codes(build()) == expected


@pytest.mark.parametrize("name", [name for name, (_, found) in CASES.items() if found & {"Q111", "Q116", "Q117"}])
def test_the_repair_keeps_the_numbers(name: str) -> None:
    model = CASES[name][0]()
    if name.startswith("a kernel's"):
        assert not any(finding.fixable for finding in linter.findings(model))
        return
    repaired = repairs.repair(model).model
    assert not linter.findings(repaired)
    for row in feeds(model):
        expected, got = ort_cpu.run(model, row), ort_cpu.run(repaired, row, optimize=True)
        for name in expected:
            np.testing.assert_array_equal(got[name], expected[name])


def test_a_softmax_kernel_is_taken_apart_where_it_goes_over_one_axis() -> None:
    fixed = repairs.repair(softmax_kernel(1 / 255)).model
    assert not linter.findings(fixed)
    x = np.zeros((2, 5, 6), np.float32)
    x[:, 2] = 12.7
    (got,) = ort_cpu.run(fixed, {"x": x}, optimize=True).values()
    expected = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    assert got.max() == np.float32(1 / 255) * 255 and np.abs(got - expected).max() <= 0.5 / 255
    assert not repairs.repair(softmax_kernel(1 / 255, opset=12)).applications


@pytest.mark.parametrize("kernel", [False, True], ids=["between grids", "kernel"])
@pytest.mark.parametrize("zero", ["overridden", "input"])
def test_a_where_whose_zero_point_is_not_constant_runs_after_the_repair(zero: str, kernel: bool) -> None:
    """Before it, making a session ends the process."""
    fixed = repairs.repair(where(zero, kernel=kernel)).model
    assert not linter.findings(fixed) and not repairs.repair(fixed).applications
    row = {"x": np.linspace(-1, 5, 32, dtype=np.float32).reshape(2, 16)}
    given = {"z": np.array(3, u8)} if zero == "input" else {}
    (got,) = ort_cpu.run(fixed, row | given, optimize=True).values()
    (expected,) = ort_cpu.run(where("constant", kernel=False), row, optimize=False).values()
    np.testing.assert_array_equal(got, expected)


def test_requantizing_to_the_same_grid_is_removed() -> None:
    g = Net()
    same = g.qdq(g.qdq(g.input("x", [4]), 0.1, u8(128)), 0.1, u8(128))
    model = g.normalized(g.op("Relu", same))
    assert codes(model) == {"Q116"}
    kept = [node.op_type for node in repairs.repair(model).model.graph]
    assert kept == ["QuantizeLinear", "DequantizeLinear", "Relu"]


def test_an_unused_pair_is_removed_and_recorded() -> None:
    repaired = repairs.repair(unused(pair=True))
    assert [node.op_type for node in repaired.model.graph] == ["Relu"]
    assert [item.rule for item in repaired.applications] == ["remove_dead_quantization"] * 2


def test_a_stored_weight_keeps_its_type_and_gets_its_integers() -> None:
    repaired = repairs.repair(float_stored(TensorProto.INT4)).model
    stored = next(
        node
        for node in repaired.graph
        if node.name and node.op_type == "DequantizeLinear" and node.inputs[0].const_value
    )
    assert stored.inputs[0].dtype == ir.DataType.INT4
    expected = np.clip(np.rint(np.linspace(-1, 1, 128, dtype=np.float32) / np.float32(1 / 7)), -8, 7).reshape(16, 8)
    np.testing.assert_array_equal(stored.inputs[0].const_value.numpy().astype(int), expected)


@pytest.mark.parametrize("name", ["a scale of zero", "no grid between two Convs", "a bias shared at two scales"])
def test_what_cannot_be_repaired_exactly_stays(name: str) -> None:
    model, expected = CASES[name][0](), CASES[name][1]
    assert codes(repairs.repair(model).model) >= expected
    assert not any(finding.fixable for finding in linter.findings(model))


def test_a_bias_behind_one_grid_for_two_scales_is_split() -> None:
    model = shared_bias(2.0**-4, one=True)
    assert codes(model) == {"Q104", "Q112"}
    repaired = repairs.repair(model).model
    assert not linter.findings(repaired)
    for row in feeds(model):
        expected, got = ort_cpu.run(model, row), ort_cpu.run(repaired, row, optimize=True)
        assert all((got[name] == expected[name]).all() for name in expected)


def test_the_worst_findings_come_first() -> None:
    g = Net()
    x = g.quantize(g.input("x", [4]), 0.0, u8(0))
    g.quantize(g.dequantize(x, 0.0, u8(0)), 0.1, u8(0))
    found = linter.findings(g.normalized(g.dequantize(x, 1e-39, u8(0))))
    assert [finding.severity for finding in found] == sorted(
        (finding.severity for finding in found), key=list(linter.Severity).index
    )
    assert {finding.severity for finding in found} == set(linter.Severity)


def test_severities_compare() -> None:
    error, warning, info = linter.Severity
    assert error.at_least(warning) and warning.at_least(warning) and not info.at_least(warning)


def test_nodes_inside_of_bodies_are_looked_at(tmp_path: Any) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]>
        main (bool c, float[4] x) => (float[4] y) <float s = {0.0}, uint8 z = {0}> {
            y = If (c) <
                then_branch = a () => (float[4] u) { q = QuantizeLinear (x, s, z) u = DequantizeLinear (q, s, z) },
                else_branch = b () => (float[4] v) { v = Relu (x) }
            >
        }"""
    )
    assert codes(model) == {"Q113"}


def test_what_newer_opsets_alone_suffer_from_is_not_found_in_an_older_file() -> None:
    model = WRONG["int8 reshaped"][1]()
    assert codes(model) == {"Q119"} and not linter.findings(model, opset=20)


def test_between_grids_of_float16_nothing_is_fused_and_nothing_is_wrong() -> None:
    half, g = np.float16, Net()
    scale, zero = g.constant(half(0.125)), g.constant(u8(128))
    grid = g.constant(np.array([0.5, 0.25], half)), g.constant(np.zeros(2, s8))
    x = g.input("x", [3, 2])
    g.inputs[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    w = g.op("DequantizeLinear", g.constant(np.array([[9, -8], [7, -6]], s8)), *grid, axis=0)
    y = g.op("MatMul", g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero), scale, zero), w)
    model = g.normalized(g.op("DequantizeLinear", g.op("QuantizeLinear", y, scale, zero), scale, zero))
    assert not linter.findings(model) and not repairs.repair(model).applications
    row = {"x": np.array([[1, 2], [-3, 4], [5, -6]], half)}
    (plain,), (optimized,) = (ort_cpu.run(model, row, optimize=optimize).values() for optimize in (False, True))
    np.testing.assert_array_equal(optimized, plain)


def test_what_a_body_hands_out_stays_its_own(tmp_path: Any) -> None:
    """ONNX Runtime refuses a body whose result is a value from outside."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]>
        main (bool c, float[4] x) => (float[4] y) <float s = {0.5}, float t = {0.3}, uint8 z = {0}> {
            y = If (c) <
                then_branch = a () => (float[4] u) {
                    p = QuantizeLinear (x, s, z) q = DequantizeLinear (p, s, z) i = Identity (q)
                    r = QuantizeLinear (i, t, z) u = DequantizeLinear (r, t, z)
                },
                else_branch = b () => (float[4] v) { v = Identity (x) }
            >
        }"""
    )
    fixed = repairs.repair(model)
    assert [item.rule for item in fixed.applications] == ["double_quantization"]
    for choice in (True, False):
        row = {"c": np.array(choice), "x": np.array([0.2, 0.6, 1.4, 3.0], np.float32)}
        (got,), (expected,) = (
            ort_cpu.run(item, row, optimize=item is not model).values() for item in (fixed.model, model)
        )
        np.testing.assert_array_equal(got, expected)


def test_a_kernel_that_would_end_the_process_is_refused_when_it_is_loaded(tmp_path):
    io.save(where("input", kernel=True), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="crashes ONNX Runtime: the zero point") as caught:
        loading.load(tmp_path / "model.onnx", BuildConfig(), Log())
    assert caught.value.code == "M132" and "lint --fix" in caught.value.fix


@pytest.mark.parametrize("zero", ["constant", "folded"])
def test_a_kernel_whose_zero_points_are_known_beforehand_is_loaded(zero, tmp_path):
    io.save(where(zero, kernel=True), tmp_path / "model.onnx")
    assert loading.load(tmp_path / "model.onnx", BuildConfig(), Log()).quantized is not None
