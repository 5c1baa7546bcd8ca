"""Operands of integer operators: their type, their limits, and the grids that no kernel takes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.rules.quantized.grid_relations import not_one_grid
from intact.rules.quantized.operand import input_operand, output_operand, q_operand
from tests.rules.quantized.operand_values import computed, constant, on_grid

U8, I8, F32 = np.uint8, np.int8, np.float32


@pytest.mark.parametrize(
    ("inputs", "attributes", "dtype"),
    [
        ((), {}, ir.DataType.UINT8),
        ((), {"output_dtype": 0}, ir.DataType.UINT8),
        ((), {"output_dtype": int(ir.DataType.INT16)}, ir.DataType.INT16),
        ((I8(3),), {}, ir.DataType.INT8),
    ],
)
def test_a_quantizer_writes_the_type_of_its_zero_point_or_the_one_it_names(inputs, attributes, dtype):
    given = [computed(F32), constant(F32(0.1)), *map(constant, inputs)]
    node = ir.Node("", "QuantizeLinear", given, ir.convenience.convert_attributes(attributes))
    assert q_operand(node).dtype == dtype


def test_an_operator_keeps_scale_and_zero_point_of_an_operand_behind_it():
    scales, zeros = ([constant(F32(step)) for step in (0.1, 0.2)], [constant(point) for point in (U8(3), U8(7))])
    data = computed(U8, (2, 2))
    node = ir.Node("com.microsoft", "QLinearSigmoid", [data, scales[0], zeros[0], scales[1], zeros[1]])
    given, result = input_operand(node, 0), output_operand(node, 3)
    assert (given.q, given.scale, given.zero_point, given.zero) == (data, scales[0], zeros[0], 3)
    assert (result.q, result.scale, result.zero_point, result.zero) == (node.outputs[0], scales[1], zeros[1], 7)


@pytest.mark.parametrize(("zero", "reach"), [(None, 255), (U8(0), 255), (U8(128), 128), (U8(127), 128), (U8(255), 255)])
def test_the_reach_is_the_farther_end_from_the_zero_point(zero, reach):
    assert on_grid(computed(U8), 1.0, zero).reach == reach


def test_any_zero_point_is_possible_where_it_is_computed():
    assert on_grid(computed(U8), 1.0, computed(U8)).reach == 255
    assert on_grid(computed(I8), 1.0, computed(I8)).reach == 255


@pytest.mark.parametrize(
    ("scale", "zero", "reason"),
    [
        (0.1, U8(3), None),
        ([0.1], None, None),
        (0.0, None, "the scale of x is 0.0"),
        (-0.1, None, "the scale of x is -0.1"),
        (np.inf, None, "the scale of x is inf"),
        (np.nan, None, "the scale of x is nan"),
        ([0.1, 0.2], None, "x has 2 numbers, not one constant scale"),
        (computed(F32), None, "x has a computed number, not one constant scale"),
        (0.1, np.array([1, 2], U8), "x has 2 numbers, not one constant zero point"),
        (constant(np.float16(0.1)), None, "the scale of x is float16: integer kernels take float32"),
    ],
)
def test_a_grid_has_one_positive_scale_and_one_zero_point(scale, zero, reason):
    found = not_one_grid(x=on_grid(computed(U8), scale, zero))
    assert found is None if reason is None else found.startswith(reason)


def test_zero_points_are_taken_from_the_integers_along_their_axis():
    integers, zeros = np.arange(6).reshape(2, 3).astype(U8), np.array([1, 2, 3], U8)
    found = on_grid(integers, [1.0, 1, 1], zeros, axis=-1).centred()
    np.testing.assert_array_equal(found, integers.astype(int) - zeros)
