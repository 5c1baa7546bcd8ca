"""Products that saturate without VNNI are found for machines that lack it; once repaired they are right everywhere."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.linting import linter, repairs
from intact.linting.repairs import Purpose
from intact.runtime import host_cpu, ort_cpu
from tests.builder import Net
from tests.linting.wrong import X, s8, u8
from tests.rules.proof.interpreter import evaluate

LARGE = 127
GRID = np.float32(X), u8(100)
ROW = {"x": np.random.default_rng(3).uniform(-4, 8, (1, 4, 6, 6)).astype(np.float32)}
MATRIX = {"x": ROW["x"].reshape(9, 16)}


def codes(model: ir.Model, *, saturates: bool = True) -> list[str]:
    return [finding.code for finding in linter.findings(model, saturates=saturates)]


def weight(*shape: int, most: int = LARGE) -> np.ndarray:
    """Numbers of both signs, of which two of one channel have the greatest magnitude."""
    found = np.random.default_rng(1).integers(-(most // 2), most // 2 + 1, shape).astype(s8)
    found.reshape(shape[0], -1)[:, :2] = most
    return found


def product(
    op: str = "Conv", data: type = u8, most: int = LARGE, *, last: bool = True, per_channel: bool = True
) -> ir.Model:
    """A product between grids, as quantizers write it."""
    g = Net()
    shape, kernel = ([1, 4, 6, 6], (8, 4, 3, 3)) if op == "Conv" else ([9, 16], (16, 8))
    x = g.qdq(g.input("x", shape), X, data(3))
    stored = weight(*kernel, most=most) if op == "Conv" else np.ascontiguousarray(weight(8, 16, most=most).T)
    count = (8,) if per_channel else ()
    axis = {"axis": 0 if op == "Conv" else 1} if per_channel else {}
    y = g.op(op, x, g.dequantize(g.constant(stored), np.full(count, 2.0**-7), np.zeros(count, s8), **axis))
    return g.normalized(g.qdq(y, 0.25, data(3)) if last else y)


def kernel(op: str) -> ir.Model:
    """The same on integers."""
    net = Net()
    if op == "QLinearConv":
        y = net.op(op, "x", *GRID, weight(8, 4, 3, 3), np.float32(0.01), s8(3), np.float32(0.5), u8(9))
        return net.model({"x": np.zeros((1, 4, 6, 6), u8)}, y)
    w = np.ascontiguousarray(weight(8, 16).T)
    if op == "MatMulInteger":
        return net.model({"x": np.zeros((9, 16), u8)}, net.op(op, "x", w, u8(100)))
    y = net.op(op, "x", w, GRID[0], np.float32(0.01), GRID[1], _domain="com.microsoft")
    return net.model({"x": np.zeros((9, 16), u8)}, y)


every_product = pytest.mark.parametrize("per_channel", [True, False])
every_type = pytest.mark.parametrize("data", [u8, s8])
every_op = pytest.mark.parametrize(
    ("op", "last"), [("Conv", True), ("MatMul", True), ("MatMul", False), ("Gemm", True), ("Gemm", False)]
)


@every_product
@every_type
@every_op
def test_after_the_repair_the_optimized_model_is_right_on_every_machine(op, last, data, per_channel) -> None:
    model, row = product(op, data, last=last, per_channel=per_channel), ROW if op == "Conv" else MATRIX
    assert codes(model) == ["Q124"]
    repaired = repairs.repair(model, saturates=True).model
    assert not codes(repaired)
    (expected,), (plain,) = evaluate(model, row).values(), ort_cpu.run(repaired, row).values()
    (optimized,) = ort_cpu.run(repaired, row, optimize=True).values()
    for found in (plain, optimized):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(not host_cpu.adds_pairs_in_16_bits(), reason="the kernels of this machine do not saturate")
@every_type
@every_op
def test_without_the_repair_a_machine_without_vnni_is_wrong(op, last, data) -> None:
    model, row = product(op, data, last=last), ROW if op == "Conv" else MATRIX
    (expected,), (found,) = (ort_cpu.run(model, row, optimize=optimize).values() for optimize in (False, True))
    assert np.abs(found - expected).max() >= 0.25


@pytest.mark.parametrize("op", ["QLinearConv", "MatMulInteger", "MatMulIntegerToFloat"])
def test_an_operator_on_integers_is_repaired_as_well(op) -> None:
    model = kernel(op)
    assert codes(model) == ["Q124"]
    repaired = repairs.repair(model, saturates=True).model
    shape = tuple(int(size) for size in model.graph.inputs[0].shape)
    row = {"x": np.random.default_rng(2).integers(0, 256, shape).astype(u8)}
    (expected,), (found,) = evaluate(model, row).values(), ort_cpu.run(repaired, row).values()
    assert not codes(repaired)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if expected.dtype == np.float32 else 0)


@pytest.mark.parametrize(("most", "found"), [(64, []), (65, ["Q124"])])
@every_op
def test_weights_whose_sums_fit_in_16_bits_are_sound(op, last, most, found) -> None:
    assert codes(product(op, most=most, last=last)) == found


def test_a_machine_with_vnni_leaves_the_model_alone() -> None:
    assert not codes(product(), saturates=False)
    assert not repairs.repair(product(), saturates=False).applications


def test_what_is_not_said_is_true_of_this_machine() -> None:
    assert bool(linter.findings(product())) is host_cpu.adds_pairs_in_16_bits()


def test_a_convolution_that_writes_floats_is_computed_in_float() -> None:
    assert not codes(product(last=False))


def test_products_that_share_a_weight_share_it_after_the_repair() -> None:
    g = Net()
    x = g.qdq(g.input("x", [9, 16]), X, u8(3))
    w = g.dequantize(g.constant(np.ascontiguousarray(weight(16, 16).T)), 2.0**-7, s8(0))
    y = g.op("MatMul", g.qdq(g.op("MatMul", x, w), 0.25, u8(3)), w)
    repaired = repairs.repair(g.normalized(g.qdq(y, 0.25, u8(3))), Purpose.MULTIPLY, saturates=True)
    weights = [node for node in repaired.model.graph if node.inputs[0].const_value is not None]
    assert [node.inputs[0].dtype for node in weights] == [ir.DataType.UINT8] and len(repaired.applications) == 1
