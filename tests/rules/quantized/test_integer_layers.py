"""What Conv, MatMul and Gemm on integers have in common: each limit met, and one past it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import query
from intact.numbers.integer_types import INT32_MAX
from intact.rules.quantized import integer_layers
from tests.rules.quantized.operand_values import builder, computed, constant, on_grid

U8, I8, F32 = np.uint8, np.int8, np.float32
X = on_grid(computed(U8), 1.0, U8(0))
MATRIX = np.arange(-3, 3).reshape(2, 3).astype(I8)


class TestWeight:
    @pytest.mark.parametrize(
        ("scale", "options", "reason"),
        [
            (0.1, {}, None),
            ([0.1, 0.2], {"axis": 0}, None),
            ([0.1, 0.2, 0.3], {"axis": 1}, "one scale for each index of axis 1, not of axis 0"),
            ([0.1, 0.2, 0.3], {"axis": 0}, "3 scales for 2 channels"),
            ([0.1, 0.0], {"axis": 0}, "a scale of the weight is not a positive number"),
            ([0.1, np.nan], {"axis": 0}, "a scale of the weight is not a positive number"),
            ([0.1, np.inf], {"axis": 0}, "a scale of the weight is not a positive number"),
            (0.1, {"block_size": 2}, "quantized in blocks"),
            (computed(F32), {}, "the grid of the weight is computed"),
        ],
    )
    def test_a_weight_has_a_positive_scale_or_one_for_each_channel(self, scale, options, reason):
        found = integer_layers.not_a_weight(X, on_grid(MATRIX, scale, **options), 0)
        assert found is None if reason is None else reason in found

    def test_several_scales_of_a_weight_of_unknown_shape_have_no_place(self):
        weight = on_grid(computed(I8), [0.1, 0.2], axis=0)
        assert "its shape is unknown" in integer_layers.not_a_weight(X, weight, 0)

    @pytest.mark.parametrize(("act", "wt", "taken"), [(U8, U8, True), (U8, I8, True), (I8, I8, True), (I8, U8, False)])
    def test_int8_by_uint8_has_no_kernel(self, act, wt, taken):
        x = on_grid(computed(act), 1.0)
        assert (integer_layers.not_a_weight(x, on_grid(MATRIX.astype(wt), 1.0), 0) is None) is taken


class TestAccumulator:
    # 66,311 times 127 and 7 are the greatest weight whose sum times 255 is an int32, 127 below its greatest number.
    WEIGHT = np.append(np.full(66311, 127), 7).astype(I8).reshape(-1, 1)

    @pytest.mark.parametrize(("bias", "fits"), [(127, True), (128, False)])
    def test_sums_and_bias_may_reach_the_greatest_int32_and_no_more(self, bias, fits):
        found = integer_layers.overflow(X, on_grid(self.WEIGHT, 1.0), 1, np.array([-bias]))
        assert found is None if fits else f"may reach {INT32_MAX + 1}," in found

    def test_a_computed_weight_is_taken_at_its_worst(self):
        sizes = [INT32_MAX // 255**2, INT32_MAX // 255**2 + 1]
        found = [integer_layers.overflow(X, on_grid(computed(U8, (size, 4)), 1.0), 1) for size in sizes]
        assert found[0] is None and f"{sizes[1]} computed terms" in found[1]

    @pytest.mark.parametrize(("last", "lost"), [(64, False), (65, True)])
    def test_float32_tells_so_many_steps_of_the_output_apart(self, last, lost):
        x, y = on_grid(computed(I8), 1.0), on_grid(computed(U8), 2.0**-3)
        weight = on_grid(np.array([64] * 255 + [last], I8).reshape(-1, 1), 1.0)  # 256 · 64 · 128 · 8 is 2²⁴.
        found = integer_layers.lost_in_float(x, weight, 1, y)
        assert found is None if not lost else "tells 16777216 apart" in found

    def test_nothing_is_said_of_sums_of_a_computed_weight(self):
        weight, y = on_grid(computed(I8, (100, 1)), 1.0), on_grid(computed(U8), 1e-6)
        assert integer_layers.lost_in_float(X, weight, 1, y) is None

    LARGE = on_grid(computed(U8), 2.0**13, U8(1))

    def test_operands_that_are_added_reach_so_many_steps_of_the_output(self):
        y = [on_grid(computed(U8), step) for step in (508 * 2.0**13 / 2**20, 507 * 2.0**13 / 2**20)]
        assert integer_layers.extent(self.LARGE) == 254 * 2.0**13
        assert integer_layers.added_in_float(y[0], self.LARGE, self.LARGE) is None
        assert "float32 loses some beyond 1048576" in integer_layers.added_in_float(y[1], self.LARGE, self.LARGE)

    def test_nothing_is_said_of_what_is_added_on_a_computed_grid(self):
        unknown, y = on_grid(computed(U8), computed(F32)), on_grid(computed(U8), 1e-3)
        assert integer_layers.added_in_float(unknown, self.LARGE) is None
        assert integer_layers.added_in_float(y, self.LARGE, unknown) is None

    def test_kernels_hold_results_in_int32(self):
        y = on_grid(computed(U8), 0.5)
        assert integer_layers.beyond_int32(y, INT32_MAX / 2) is None
        assert "more than kernels hold in int32" in integer_layers.beyond_int32(y, INT32_MAX)
        assert integer_layers.beyond_int32(on_grid(computed(U8), computed(F32)), 1e30) is None

    @pytest.mark.parametrize(
        ("sign", "zero", "scale", "covered"),
        # From 0 to ±127.5: half a step beyond a grid rounds to its end.
        [(1, 128, 0.5, True), (1, 128, 0.501, False), (-1, 127, 0.5, True), (-1, 127, 0.501, False)],
    )
    def test_a_grid_covers_what_rounds_to_its_ends(self, sign, zero, scale, covered):
        x, grid = on_grid(computed(U8), 1.0, U8(0)), on_grid(computed(U8), 1.0, U8(zero))
        weight = on_grid(np.array([[0, sign], [sign, 0]], I8), scale)
        found = integer_layers.saturates(x, weight, 1, grid)
        assert found is None if covered else "but the intermediate grid covers" in found

    @pytest.mark.parametrize(("attributes", "axis"), [({}, 1), ({"transB": 0}, 1), ({"transB": 1}, 0)])
    def test_the_columns_of_a_gemm(self, attributes, axis):
        gemm = ir.Node("", "Gemm", [], ir.convenience.convert_attributes(attributes))
        assert integer_layers.gemm_axis(gemm) == axis


def dequantized(array, scale, zero=None, **attributes):
    """The output of a DequantizeLinear of constants."""
    given = [constant(array), constant(np.asarray(scale, F32)), *([] if zero is None else [constant(zero)])]
    return ir.Node("", "DequantizeLinear", given, ir.convenience.convert_attributes(attributes)).outputs[0]


STEPS = np.array([0.5, 0.25], F32)
WEIGHT = on_grid(MATRIX, [0.5, 0.25], axis=0)


class TestBias:
    def test_a_bias_that_was_quantized_in_steps_of_the_accumulator_is_taken_as_it_is_stored(self):
        stored = np.array([2**31 - 1, -7], np.int32)
        np.testing.assert_array_equal(integer_layers.bias_levels(dequantized(stored, STEPS, axis=0), STEPS, 2), stored)

    @pytest.mark.parametrize("bias", [np.array([3, -1], F32), np.array([[3, -1]], F32)])
    def test_a_bias_is_divided_by_the_steps(self, bias):
        np.testing.assert_array_equal(integer_layers.bias_levels(constant(bias), STEPS, 2), [6, -4])

    def test_a_bias_on_another_grid_is_brought_to_the_steps(self):
        other = dequantized(np.array([13, 9], U8), 2 * STEPS, np.array([10, 10], U8), axis=0)
        np.testing.assert_array_equal(integer_layers.bias_levels(other, STEPS, 2), [6, -2])
        twice = dequantized(np.array([3, -1], np.int32), 2 * STEPS, axis=0)
        np.testing.assert_array_equal(integer_layers.bias_levels(twice, STEPS, 2), [6, -2])

    def test_one_number_is_added_to_every_channel(self):
        np.testing.assert_array_equal(integer_layers.bias_levels(constant(F32(1)), STEPS, 2), [2, 4])

    @pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 2)])
    def test_other_shapes_have_no_place(self, shape):
        found = integer_layers.bias_levels(constant(np.ones(shape, F32)), STEPS, 2)
        assert f"the bias has shape {list(shape)}, not one number for each of 2 channels" in found

    def test_a_bias_in_blocks_or_of_a_computed_grid_is_not_constant(self):
        unknown = ir.Node("", "DequantizeLinear", [constant(np.int32([1, 2])), computed(F32)]).outputs[0]
        for bias in (dequantized(np.int32([1, 2]), STEPS, axis=0, block_size=1), unknown):
            assert integer_layers.bias_levels(bias, STEPS, 2) == "the bias is computed, not constant"

    def test_scales_lie_along_their_axis(self):
        levels, scales = np.arange(6).reshape(2, 3).astype(U8), np.array([0.5, 2], F32)
        found = integer_layers.dequantized_constant(on_grid(levels, scales, np.array([1, 2], U8), axis=-2))
        np.testing.assert_array_equal(found, (levels - np.array([[1.0], [2]])) * scales[:, None])

    @pytest.mark.parametrize(("y_step", "moves"), [(0.25, False), (0.24, True), (None, False)])
    def test_rounding_a_bias_may_move_one_channel_by_half_a_step_of_the_output(self, y_step, moves):
        bias = constant(np.array([1, 0.125], F32))  # Two whole steps, and half of one, which is 0.125.
        found = integer_layers.not_a_bias(bias, X, WEIGHT, y_step, 0)
        assert found is None if not moves else "the bias would move by 0.125, more than half a step" in found

    def test_a_bias_needs_a_weight_of_known_shape(self):
        found = integer_layers.not_a_bias(constant(F32(1)), X, on_grid(computed(I8), 0.5), 1.0, 0)
        assert found == "the shape of the weight is unknown"

    def test_kernels_are_given_the_bias_in_int32(self):
        found = integer_layers.bias_constant(builder(), constant(np.array([3, -1], F32)), X, WEIGHT, 0)
        assert query.constant(found).dtype == np.int32 and query.constant(found).tolist() == [6, -4]
        assert integer_layers.bias_constant(builder(), None, X, WEIGHT, 0) is None

    def test_a_stored_bias_is_not_stored_again(self):
        bias = dequantized(np.array([5, -7], np.int32), STEPS, axis=0)
        assert integer_layers.bias_constant(builder(), bias, X, WEIGHT, 0) is bias.producer().inputs[0]
