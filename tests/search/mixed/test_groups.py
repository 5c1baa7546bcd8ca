"""Groups of nodes with one precision: which of them may stay in float beside grids, and where."""

from __future__ import annotations

import numpy as np
import pytest

from intact.search.mixed.groups import Joins, structure
from intact.search.mixed.precisions import throughout
from intact.settings.config import BuildConfig, QuantConfig
from intact.targets.registry import load_target
from tests.builder import Net

INT8 = QuantConfig(activation_type="int8", weight_type="int8")


def two_convolutions():
    net = Net("two")
    x = net.input("x", (1, 4, 8, 8))
    weights = np.random.default_rng(0).standard_normal((2, 4, 4, 3, 3)).astype(np.float32)
    first = net.op("Conv", x, weights[0])
    return net.normalized(net.op("Conv", first, weights[1]))


@pytest.mark.parametrize(
    ("soc", "levels", "joins"),
    [
        # What is not quantized is computed in half precision, and takes what integers left or is taken on.
        ("rk3588", (0, 1), Joins(behind=True, before=True, between=False)),
        ("rv1106", (0,), Joins(behind=False, before=False, between=False)),
    ],
)
def test_a_layer_may_be_in_half_precision_where_the_chip_has_it(soc, levels, joins):
    target = load_target("rknn", soc=soc)
    found = structure(two_convolutions(), target, INT8, target.costs.levels)
    assert [group.levels for group in found.groups] == [levels, levels]
    assert all(group.joins == joins for group in found.groups)


def test_a_toolchain_that_makes_half_precision_by_itself_is_not_offered_a_model_written_in_it():
    target = load_target("rknn", soc="rk3588")
    config = BuildConfig.from_dict({"compile": {"device": "rknn"}})
    offered = throughout(target, config)
    assert "int8" in offered
    assert "fp16" not in offered
