"""Pools with one window, which is larger than the image."""

from __future__ import annotations

import numpy as np
import pytest

from intact.rules.float.whole_pools import PoolWholeImage
from intact.runtime import ort_cpu
from tests.model.small import ops
from tests.rules.float.before_after import given, rewritten

CEIL = "ceil_mode = 1"


def pool(*attributes, size="5,4", channels=3):
    spatial = ",".join("1" for _ in size.split(","))
    body = f"y = AveragePool <{', '.join(attributes)}> (x)"
    return body, f"(float[2,{channels},{size}] x) => (float[2,{channels},{spatial}] y)"


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        (("kernel_shape = [9,9]", "strides = [9,9]", CEIL), "5,4"),
        (("kernel_shape = [5,7]", "strides = [5,7]", CEIL), "5,4"),
        (("kernel_shape = [8]", "strides = [8]", CEIL), "5"),
        (("kernel_shape = [9,9]", "strides = [9,9]", CEIL, "count_include_pad = 1"), "5,4"),
    ],
)
def test_a_window_beyond_the_image_is_a_mean_of_all(attributes, size):
    body, signature = pool(*attributes, size=size)
    result = rewritten([PoolWholeImage()], body, signature)
    assert ops(result.model) == ["GlobalAveragePool"]
    x = np.random.default_rng(0).standard_normal([2, 3, *map(int, size.split(","))]).astype(np.float32)
    mean = x.astype(np.float64).mean(tuple(range(2, x.ndim)), keepdims=True)
    before, after = (ort_cpu.run(model, {"x": x})["y"] for model in (given(body, signature), result.model))
    assert np.abs(before - mean).max() < 1e-6 and np.abs(after - mean).max() < 1e-6


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (("kernel_shape = [5,4]",), "windows of [5, 4] do not end beyond [5, 4] numbers"),
        (("kernel_shape = [3,4]", "strides = [9,9]"), "windows of [3, 4] do not end beyond [5, 4] numbers"),
        (("kernel_shape = [6,6]", "strides = [9,9]", "pads = [1,1,1,1]"), "it has pads, or skips numbers"),
        (("kernel_shape = [6,6]", "dilations = [2,2]", "strides = [20,20]", CEIL), "it has pads, or skips numbers"),
    ],
)
def test_it_refuses_with_a_reason(attributes, reason):
    result = rewritten([PoolWholeImage()], *pool(*attributes))
    assert [item.reason for item in result.refusals] == [reason] and result.applications == ()


def test_several_windows_stay():
    body, signature = "y = AveragePool <kernel_shape = [2,2]> (x)", "(float[1,3,5,4] x) => (float[1,3,4,3] y)"
    result = rewritten([PoolWholeImage()], body, signature)
    assert [item.reason for item in result.refusals] == ["it has several windows, or a shape is unknown"]
