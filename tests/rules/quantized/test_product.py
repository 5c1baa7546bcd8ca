"""Products of activations and a weight on integers: where each operator keeps its operands, and what they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import query
from intact.rules.quantized.product import not_constant, not_distinct, product
from tests.rules.quantized.operand_values import builder, computed, constant

U8, I8, F32 = np.uint8, np.int8, np.float32
X, XS, XZ = computed(U8, (2, 4, 5, 5)), constant(F32(0.5)), constant(U8(3))
W, WS, WZ = constant(np.ones((6, 4, 3, 3), I8)), constant(np.full(6, 0.25, F32)), constant(np.arange(6).astype(I8))
YS, YZ = constant(F32(2)), constant(U8(7))
MATRIX = constant(np.ones((5, 6), I8))

# The operator, its inputs, its attributes: then axes of the channels of the weight, and of the sums in x and w.
PLACES = [
    ("", "QLinearConv", (X, XS, XZ, W, WS, WZ, YS, YZ), {}, (0, 1, 1)),
    ("", "ConvInteger", (X, W, XZ, WZ), {}, (0, 1, 1)),
    ("", "QLinearMatMul", (X, XS, XZ, MATRIX, WS, WZ, YS, YZ), {}, (-1, -1, -2)),
    ("", "MatMulInteger", (X, MATRIX, XZ, WZ), {}, (-1, -1, -2)),
    ("com.microsoft", "QGemm", (X, XS, XZ, MATRIX, WS, WZ, None, YS, YZ), {}, (1, 1, 0)),
    ("com.microsoft", "QGemm", (X, XS, XZ, MATRIX, WS, WZ, None, YS, YZ), {"transA": 1, "transB": 1}, (0, 0, 1)),
    ("com.microsoft", "MatMulIntegerToFloat", (X, MATRIX, XS, WS, XZ, WZ), {}, (-1, -1, -2)),
]


def node(domain, op, inputs, attributes=None):
    return ir.Node(domain, op, inputs, ir.convenience.convert_attributes(attributes or {}))


@pytest.mark.parametrize(("domain", "op", "inputs", "attributes", "axes"), PLACES)
def test_operands_are_read_from_where_the_operator_keeps_them(domain, op, inputs, attributes, axes):
    found = product(node(domain, op, inputs, attributes))
    has_scales = XS in inputs
    assert (found.x.q, found.x.scale, found.x.zero_point) == (X, XS if has_scales else None, XZ)
    assert (found.w.q, found.w.scale, found.w.zero_point) == (
        W if W in inputs else MATRIX,
        WS if has_scales else None,
        WZ,
    )
    assert (found.w.axis, found.x_axis, found.w_axis, found.group) == (*axes, 1)


@pytest.mark.parametrize(("domain", "op", "inputs", "attributes", "axes"), PLACES)
@pytest.mark.parametrize("unsigned", [False, True])
def test_another_weight_stands_in_the_place_of_the_first_around_one_zero_point(
    domain, op, inputs, attributes, axes, unsigned
):
    given = node(domain, op, inputs, attributes)
    weight, other = np.array([[-3, 4]]), computed(U8)
    found = product(given)
    for x in (None, other):
        made = found.with_weight(builder(), weight, x, unsigned=unsigned).producer()
        after = product(made)
        assert (made.domain, made.op_type, dict(made.attributes)) == (domain, op, dict(given.attributes))
        assert (
            after.x.q is (other if x is not None else X) and after.x.zero_point is XZ and after.w.scale is found.w.scale
        )
        assert query.constant(after.w.q).dtype == (U8 if unsigned else I8)
        zeros = query.constant(after.w.zero_point)
        if found.w.scale is None and not unsigned:
            assert zeros is None
        else:
            assert zeros.shape == (() if found.w.scale is None else (6,)) and (zeros == 128 * unsigned).all()
        np.testing.assert_array_equal(query.constant(after.w.q).astype(int) - 128 * unsigned, weight)


@pytest.mark.parametrize(
    ("shape", "group", "is_depthwise"),
    [((4, 1, 3), 4, True), ((8, 1, 3), 4, True), ((4, 2, 3), 2, False), ((4, 1, 3), 1, False)],
)
def test_a_convolution_is_depthwise_if_each_output_sees_one_of_several_inputs(shape, group, is_depthwise):
    inputs = X, XS, XZ, constant(np.ones(shape, I8)), WS, WZ, YS, YZ
    assert product(node("", "QLinearConv", inputs, {"group": group})).is_depthwise is is_depthwise


@pytest.mark.parametrize(
    ("weight", "zeros", "reason"),
    [
        (W, WZ, None),
        (W, constant(np.full(6, 4, I8)), "the weight has the same zero point in every channel"),
        (W, None, "the weight has no zero point"),
        (W, computed(I8, (6,)), "the zero points of the weight are computed, not constant"),
        (computed(I8, (6, 4, 3, 3)), WZ, "the weight is computed, not constant"),
        (constant(np.ones((6, 4, 3, 3), np.int16)), WZ, "the weight is int16, not of 8 bits"),
    ],
)
def test_zero_points_are_worth_a_rewrite_if_they_are_known_and_differ(weight, zeros, reason):
    found = product(node("", "ConvInteger", (X, weight, XZ, zeros)))
    assert not_distinct(found) == reason
    assert not_constant(found) == (None if reason and "the same" in reason else reason)
