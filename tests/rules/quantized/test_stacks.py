"""Stacks of matrices as one matrix, and back: which shapes allow it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import query
from intact.rules.quantized import stacks
from tests.rules.quantized.operand_values import builder, computed, on_grid

WEIGHT = on_grid(np.zeros((4, 10), np.int8), 1.0)
UNKNOWN, SEVERAL = "are not known to be matrices or stacks of them", "several unknown dimensions"


@pytest.mark.parametrize(
    ("given", "shape", "is_moved", "reason"),
    [
        ((3, 4), (3, 10), False, None),
        ((2, 3, 4), (2, 3, 10), False, None),
        (("n", 3, 4), (None, 3, 10), False, None),
        (("n", 4), (None, None), False, None),
        (("n", 4), (None, None), True, "the last dimension of the result is None, not the 10 columns"),
        ((3, 4), (2, 15), True, "the last dimension of the result is 15, not the 10 columns"),
        ((3, 4), (3, 1, 10), True, None),
        (("n", "m", 4), (None, None, 10), False, SEVERAL),
        ((4,), (10,), False, UNKNOWN),
        (None, (3, 10), False, UNKNOWN),
        ((3, 4), None, False, UNKNOWN),
    ],
)
def test_at_most_one_dimension_of_a_stack_is_unknown_and_its_last_one_holds_the_columns(given, shape, is_moved, reason):
    found = stacks.not_flat(computed(np.uint8, given), WEIGHT, shape, is_moved=is_moved)
    assert found is None if reason is None else reason in found


def test_a_product_has_not_been_moved_unless_that_is_said():
    assert stacks.not_flat(computed(np.uint8, ("n", 4)), WEIGHT, (None, None)) is None


def test_a_stack_becomes_the_rows_of_one_matrix_and_goes_back_to_its_shape():
    """The weight has 4 rows: whatever comes before the last dimension is counted by the runtime."""
    op = builder()
    flat = stacks.rows(op, computed(np.uint8, (2, 3, 4)), WEIGHT)
    back = stacks.in_shape(op, flat, (None, 3, 10))
    assert [value.producer().op_type for value in (flat, back)] == ["Reshape", "Reshape"]
    assert query.constant(flat.producer().inputs[1]).tolist() == [-1, 4]
    assert query.constant(back.producer().inputs[1]).tolist() == [-1, 3, 10]


@pytest.mark.parametrize(("known", "shape"), [((2, 3, 10), (2, 3, 10)), (None, (2, None, 10))])
def test_a_result_of_unknown_shape_has_that_of_the_product(known, shape):
    last = ir.Node("", "Add", [])
    last.outputs[0].shape = None if known is None else ir.Shape(known)
    assert stacks.result_shape(computed(np.uint8, (2, "n", 4)), WEIGHT, last) == shape
