"""Chains of Q and DQ nodes: where they shrink, and why they do not."""

from __future__ import annotations

import numpy as np
import pytest

from intact.matching.rewriter import apply
from intact.numbers import integer
from intact.rules.discovery import rules_of
from intact.rules.quantized import folding
from tests.builder import Net
from tests.rules.proof.harness import fired, refused

X = np.zeros(8, np.float32)
BYTES = np.zeros(8, np.uint8)
u8, u16 = np.uint8, np.uint16


def pair(net, x, scale, zero, **attributes):
    return net.dequantize(net.quantize(x, scale, zero, **attributes), scale, zero, **attributes)


def chain(first, second, third=None):
    """Q(DQ(Q(x))), or with three grids Q(DQ(Q(DQ(x)))) over integers."""
    net = Net()
    x = "x" if third is None else net.dequantize("x", *first)
    grids = (first, second) if third is None else (second, third)
    result = net.quantize(pair(net, x, *grids[0]), *grids[1])
    return net.model({"x": X if third is None else BYTES}, result)


def twins(op, *grids, **attributes):
    net = Net()
    outputs = [net.op("Identity", net.op(op, "x", np.float32(scale), zero, **attributes)) for scale, zero in grids]
    return net.model({"x": X if op == "QuantizeLinear" else BYTES}, *outputs)


TWO = ["Identity", "Identity"]
FIRES = [
    (folding.DropSelfRequantize, chain((0.1, u8(3)), (0.1, u8([3]))), ["QuantizeLinear"]),
    (
        folding.SkipRequantize,
        chain((0.1, u8(3)), (0.001, u16(900)), (0.3, u8(3))),
        ["DequantizeLinear", "QuantizeLinear"],
    ),
    (folding.MergeRequantize, chain((0.001, u16(32768)), (0.1, u8(128))), ["QuantizeLinear"]),
    (
        folding.MergeRequantize,
        chain((0.1, u8(3)), (0.15, u8(3)), (0.1, u8(3))),
        ["DequantizeLinear", "QuantizeLinear"],
    ),
    (folding.MergeEqualQuantizers, twins("QuantizeLinear", (0.1, u8(3)), ([0.1], u8([3]))), ["QuantizeLinear", *TWO]),
    (folding.MergeEqualDequantizers, twins("DequantizeLinear", (0.1, u8(3)), (0.1, u8(3))), ["DequantizeLinear", *TWO]),
]
REFUSES = [
    (folding.DropSelfRequantize, chain((0.1, u8(3)), (0.2, u8(3))), "the scales differ (0.1 and 0.2)"),
    (folding.DropSelfRequantize, chain((0.1, u8(3)), (0.1, u8(4))), "the zero points differ ([3] and [4])"),
    (folding.DropSelfRequantize, chain((0.1, u8(3)), (0.1, np.int8(3))), "the types differ (uint8 and int8)"),
    (folding.DropSelfRequantize, chain((1e-40, u8(3)), (1e-40, u8(3))), "is not between"),
    (folding.SkipRequantize, chain((0.1, u8(3)), (0.15, u8(3)), (0.1, u8(3))), "some integers would move by 1"),
    (folding.MergeRequantize, chain((0.1, u8(128)), (0.049, u8(128))), "is more than 2 times the output scale 0.049"),
    (folding.MergeRequantize, chain((0.0999, u16(32768)), (0.05, u16(32768))), "is 1.99799997 times the output scale"),
    (folding.MergeRequantize, chain((0.01, u8(128)), (0.1, u8(128))), "covers -1.28 to 1.27, but values of the output"),
    (folding.MergeRequantize, chain((0.1, u8(0)), (0.1, u8(128))), "covers 0 to 25.5, but"),
    (folding.MergeRequantize, chain((0.1, u8(0)), (0.5, u8(0)), (0.1, u8(0))), "some integers would move by 2"),
]


@pytest.mark.parametrize(("rule", "model", "left"), FIRES)
def test_a_rule_fires(rule, model, left):
    assert fired(rule(), model) == left


@pytest.mark.parametrize(("rule", "model", "reason"), REFUSES)
def test_a_rule_refuses_with_the_numbers(rule, model, reason):
    assert reason in refused(rule(), model)


def test_the_limit_of_two_steps_is_allowed():
    assert fired(folding.MergeRequantize(), chain((0.1, u16(32768)), (0.05, u8(128)))) == ["QuantizeLinear"]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("below_two", [0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1])
def test_no_value_moves_by_more_than_a_step_near_the_limit(dtype, below_two):
    """At every border between two levels of either grid, and at the floats beside it."""
    zero = dtype(np.iinfo(dtype).max // 2 + 1)
    step = np.float32(0.4285965)
    coarse = np.float32(step * np.float32(2 - below_two))
    model = chain((coarse, zero), (step, zero))
    if not apply(model.clone(), [folding.MergeRequantize()]).applications:
        assert 0 < below_two < 0.07
        return
    borders = np.arange(-int(zero), int(zero)) + 0.5
    x = np.concatenate([borders * np.float64(coarse), borders * np.float64(step)]).astype(np.float32)
    x = np.concatenate([np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))])
    twice = integer.dequantize_linear(integer.quantize_linear(x, coarse, zero), coarse, zero)
    moved = integer.quantize_linear(twice, step, zero).astype(int) - integer.quantize_linear(x, step, zero).astype(int)
    assert np.abs(moved).max() == 1


def test_twins_with_other_grids_or_attributes_stay():
    for model in (
        twins("QuantizeLinear", (0.1, u8(3)), (0.1, u8(4))),
        twins("QuantizeLinear", (0.1, u8(3)), (0.2, u8(3))),
    ):
        assert not apply(model, [folding.MergeEqualQuantizers()]).applications
    net = Net()
    outputs = [net.op("QuantizeLinear", "x", np.float32(0.1), u8(3), axis=axis) for axis in (0, 1)]
    model = net.model({"x": np.zeros((2, 2), np.float32)}, *outputs)
    assert "the attributes of" in refused(folding.MergeEqualQuantizers(), model)


def test_equal_scales_along_different_axes_are_different_grids():
    net, grid = Net(), (np.float32([0.1, 0.2]), u8([3, 4]))
    net.quantize(net.dequantize("x", *grid, axis=0), *grid, axis=1)
    model = net.model({"x": np.zeros((2, 2), u8)}, "t1")
    assert "the axes of the scales differ (0 and 1)" in refused(folding.DropSelfRequantize(), model)


def test_integers_that_others_use_keep_their_grid():
    net = Net()
    middle = net.quantize("x", 0.001, u16(32768))
    net.quantize(net.dequantize(middle, 0.001, u16(32768)), 0.1, u8(128))
    done = apply(net.model({"x": X}, "t0", "t2"), [folding.MergeRequantize()])
    assert not done.applications


def test_a_chain_of_equal_pairs_becomes_one_pair():
    net, x = Net(), "x"
    for index in range(5):
        x = pair(net, x, np.full((1,) * (index % 2), 0.1), np.full((1,) * (index % 2), 3, u8))
    done = apply(net.model({"x": X}, x), rules_of(folding))
    assert [node.op_type for node in done.model.graph] == ["QuantizeLinear", "DequantizeLinear"]
    assert {item.exactness for item in done.applications} == {"exact"}
