"""Depthwise convolutions with a zero point for each channel go through float, in whole numbers, and no others do."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.quantized import depthwise
from tests.rules.proof.harness import fired, prove, refused
from tests.rules.quantized.cases.zero_points import convolution

U8, I8 = np.uint8, np.int8


def case(form, op, spatial=2, seed=0, **options):
    return convolution(np.random.default_rng(seed), U8, I8, form, spatial, op, **options)


@pytest.mark.parametrize("form", ["depthwise", "multiplier 2"])
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize(
    ("rule", "op"),
    [
        (depthwise.ConvThroughFloat, "QLinearConv"),
        (depthwise.ConvIntegerThroughFloat, "ConvInteger"),
        (depthwise.DepthwiseToQLinear, "Conv"),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_depthwise_convolution_keeps_its_numbers(rule, op, form, spatial, bias):
    assert prove(rule(), case(form, op, spatial, bias=bias)) > 0


@pytest.mark.parametrize("form", ["dense", "group 2"])
def test_other_convolutions_are_for_other_rules(form):
    assert "a copy of the input is faster" in refused(depthwise.ConvThroughFloat(), case(form, "QLinearConv").model)
    assert "a copy of the input is faster" in refused(
        depthwise.ConvIntegerThroughFloat(), case(form, "ConvInteger").model
    )
    assert refused(depthwise.DepthwiseToQLinear(), case(form, "Conv").model) == (
        "it is not depthwise: conv_to_qlinear takes it"
    )


def test_a_kernel_of_one_dimension_becomes_one_of_two():
    left = fired(depthwise.ConvThroughFloat(), case("depthwise", "QLinearConv", 1).model)
    assert "Unsqueeze" in left and "Squeeze" in left
    assert "Unsqueeze" not in fired(depthwise.ConvThroughFloat(), case("depthwise", "QLinearConv", 2).model)


@pytest.mark.parametrize("op", ["QLinearConv", "ConvInteger", "Conv"])
def test_one_zero_point_for_all_channels_needs_no_rule(op):
    rule = {"QLinearConv": depthwise.ConvThroughFloat, "ConvInteger": depthwise.ConvIntegerThroughFloat}
    found = refused(
        rule.get(op, depthwise.DepthwiseToQLinear)(),
        case("depthwise", op, zeros=lambda zeros: np.full_like(zeros, 5)).model,
    )
    assert found == "the weight has the same zero point in every channel"
