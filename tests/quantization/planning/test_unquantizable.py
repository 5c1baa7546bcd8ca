"""Integers that are too few to be worth it on a chip that computes the rest in half precision."""

from __future__ import annotations

import numpy as np
import pytest

from intact.quantization.planning import unquantizable
from intact.quantization.planning.planner import plan
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.builder import Net

INT8 = {"activation_type": "int8", "weight_type": "int8"}


def convolution_and_product(columns):
    """1024 multiplications in a Conv, and 128 for each column of a MatMul on three dimensions."""
    net, rng = Net("share"), np.random.default_rng(0)
    x = net.op("Conv", net.input("x", (1, 8, 4, 4)), rng.standard_normal((8, 8, 1, 1)).astype(np.float32))
    rows = net.op("Reshape", x, np.array([1, 16, 8]))
    return net.normalized(net.op("MatMul", rows, rng.standard_normal((8, columns)).astype(np.float32)))


def lone(columns, device="rknn", soc="rk3588", **more):
    target, config = load_target(device, soc=soc), QuantConfig.from_dict({**INT8, **more})
    model = convolution_and_product(columns)
    return unquantizable.lone(model, plan(model, target, config), target, config)


def test_a_tenth_of_the_multiplications_is_worth_it_and_less_is_not():
    assert lone(72) is None
    found = lone(73)
    assert found.code == "T110"
    assert "rknn/rk3588 takes 9.9% of the multiplications" in found.message
    assert "--no-rescue" in found.fix


@pytest.mark.parametrize("more", [{"rescue": False}, {"nodes": ["the_t0"]}, {"exclude_op_types": ["MatMul"]}])
def test_settings_that_choose_are_followed(more):
    assert lone(73, **more) is None


def test_a_chip_without_half_precision_takes_what_it_can_in_integers():
    assert lone(73, soc="rv1106") is None
