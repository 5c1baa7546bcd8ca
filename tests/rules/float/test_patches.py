"""Convolutions over patches in two steps, for targets that take short strides only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, query, upgrade
from intact.rules.float import optimization
from intact.rules.float.patches import SplitLongStride, TakeNeighboursIntoChannels, TakePixelsIntoChannels
from tests.model.small import ops
from tests.rules.float.before_after import difference, given, rewritten
from tests.zoo.large import vit_small

LONGEST = 7


def conv(kernel, size, channels=3, **attributes):
    """A convolution of a square image over patches, with a bias."""
    rng = np.random.default_rng(0)
    written = ", ".join(f"{name} = {value}" for name, value in {"strides": list(kernel), **attributes}.items())
    body = f"y = Conv <{written}> (x, w, b)"
    arrays = {"w": rng.standard_normal((5, channels, *kernel)), "b": rng.standard_normal(5)}
    signature = f"(float[1, {channels}, {size}, {size}] x) => (float[1, 5, n, m] y)"
    return body, signature, {name: array.astype(np.float32) for name, array in arrays.items()}


def strides(model: ir.Model) -> list[list[int]]:
    return [list(node.attributes["strides"].as_ints()) for node in model.graph]


@pytest.mark.parametrize(
    ("kernel", "size", "expected"),
    [
        ((8, 8), 24, [[2, 2], [4, 4]]),
        ((14, 14), 28, [[2, 2], [7, 7]]),
        ((16, 16), 32, [[4, 4], [4, 4]]),
        ((16, 4), 32, [[4, 1], [4, 4]]),
        # The image is no multiple of the patch: what is left over is left out in both forms.
        ((16, 16), 45, [[4, 4], [4, 4]]),
        ((64, 64), 64, [[4, 4], [4, 4], [4, 4]]),
    ],
)
def test_it_fires_until_no_stride_is_too_long_and_keeps_the_numbers(kernel, size, expected):
    body, signature, arrays = conv(kernel, size)
    before = given(body, signature, **arrays)
    after = optimization.optimize(before, ops=lambda *_: True, asked=[SplitLongStride(LONGEST)]).model
    assert strides(after) == expected
    assert difference(before, after) < 1e-5


def test_a_stride_at_the_limit_stays_and_one_past_it_does_not():
    rule = SplitLongStride(LONGEST)
    at, past = (rewritten([rule], *conv((n, n), 4 * n)[:2], **conv((n, n), 4 * n)[2]) for n in (LONGEST, LONGEST + 1))
    assert ops(at.model) == ["Conv"]
    assert at.refusals[0].reason == "no stride of [7, 7] is above 7"
    assert ops(past.model) == ["Conv", "Conv"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            conv((16, 16), 64, strides=[8, 8]),
            "patches of [16, 16] with strides [8, 8] or padding overlap or leave gaps",
        ),
        (conv((8, 8), 32, pads=[1, 1, 1, 1]), "patches of [8, 8] with strides [8, 8] or padding overlap or leave gaps"),
        (conv((8, 8), 32, dilations=[2, 2]), "it has groups or dilations"),
        (conv((11, 11), 44), "no step of 2 to 7 divides the strides [11, 11]"),
    ],
)
def test_it_refuses(case, reason):
    body, signature, arrays = case
    result = rewritten([SplitLongStride(LONGEST)], body, signature, **arrays)
    assert ops(result.model) == ["Conv"]
    assert result.refusals[0].reason == reason


def test_patches_of_a_transformer_are_left_alone_for_targets_without_a_limit():
    small = vit_small(image=64, layers=1, width=24, heads=3, classes=10)
    model = normalize.normalize(upgrade.upgrade(ir.from_proto(small)).model)
    whole = optimization.optimize(model, ops=lambda *_: True).model
    split = optimization.optimize(model, ops=lambda *_: True, asked=[SplitLongStride(LONGEST)]).model
    assert [ops(found).count("Conv") for found in (whole, split)] == [1, 2]
    assert difference(model, split) < 1e-5


LANES = 32


@pytest.mark.parametrize(
    ("kernel", "size", "attributes", "expected"),
    [
        # The stem of a ResNet: four cells of two pixels hold seven, the first pixel of the first cell is not read.
        ((7, 7), 16, {"strides": [2, 2], "pads": [3, 3, 3, 3]}, ([4, 4], [2, 2, 1, 1])),
        ((7, 7), 16, {"strides": [2, 2]}, ([4, 4], [0, 0, 0, 0])),
        ((5, 7), 18, {"strides": [3, 3], "pads": [1, 2, 3, 4]}, ([3, 3], [1, 1, 1, 1])),
        ((7, 7), 15, {"strides": [3, 1], "pads": [3, 3, 3, 3]}, ([3, 7], [1, 3, 1, 3])),
    ],
)
def test_pixels_go_into_channels_and_the_numbers_stay(kernel, size, attributes, expected):
    body, signature, arrays = conv(kernel, size, **attributes)
    before = given(body, signature, **arrays)
    after = rewritten([TakePixelsIntoChannels(LANES)], body, signature, **arrays).model
    cells, rest = after.graph
    assert list(cells.attributes["strides"].as_ints()) == attributes["strides"]
    assert list(rest.attributes["strides"].as_ints()) == [1, 1]
    assert [list(rest.attributes[name].as_ints()) for name in ("kernel_shape", "pads")] == list(expected)
    assert difference(before, after) < 1e-5


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (conv((7, 7), 16, strides=[1, 1]), "strides [1, 1] skip no pixel, or its padding is not given in numbers"),
        (
            conv((7, 7), 15, strides=[2, 2], pads=[3, 3, 3, 3]),
            "graph input 'x' is no whole number of cells of [2, 2] pixels, or they are not all read",
        ),
        (
            conv((3, 3), 16, strides=[2, 2], pads=[1, 1, 1, 1]),
            "8192 instead of 9216 multiplications for each result save too few",
        ),
        (
            conv((7, 7), 16, channels=32, strides=[2, 2], pads=[3, 3, 3, 3]),
            "81920 instead of 50176 multiplications for each result save too few",
        ),
        (conv((7, 7), 32, strides=[2, 2], dilations=[2, 2]), "it has groups or dilations"),
    ],
)
def test_pixels_stay_where_they_are(case, reason):
    body, signature, arrays = case
    result = rewritten([TakePixelsIntoChannels(LANES)], body, signature, **arrays)
    assert ops(result.model) == ["Conv"]
    assert result.refusals[0].reason == reason


@pytest.mark.parametrize(
    ("kernel", "channels", "outputs", "attributes", "expected"),
    [
        # What pixels in channels leave of the stem of a ResNet: two by two, as far apart as the rest is long.
        ((4, 4), 12, 60, {"pads": [2, 2, 1, 1]}, ([1, 2], [1, 2], [0, 2, 0, 1], [4, 2], [2, 0, 1, 0])),
        # The stem of a VGG.
        ((3, 3), 3, 60, {"pads": [1, 1, 1, 1]}, ([1, 3], [1, 1], [0, 1, 0, 1], [3, 1], [1, 0, 1, 0])),
        # Nine pixels in two times five: the last weight is a zero, and one more pixel is padding.
        ((9, 1), 12, 200, {"pads": [0, 1, 2, 3]}, ([2, 1], [5, 1], [0, 0, 3, 0], [5, 1], [0, 1, 0, 3])),
        ((7, 1), 4, 200, {}, ([7, 1], [1, 1], [0, 0, 0, 0], [1, 1], [0, 0, 0, 0])),
    ],
)
def test_neighbours_go_into_channels_and_the_numbers_stay(kernel, channels, outputs, attributes, expected):
    body, signature, arrays = conv(kernel, 12, channels=channels, **{"strides": [1, 1], **attributes})
    arrays = {name: np.concatenate([array] * (outputs // 5)) for name, array in arrays.items()}
    signature = signature.replace("[1, 5,", f"[1, {outputs},")
    before = given(body, signature, **arrays)
    after = rewritten([TakeNeighboursIntoChannels(LANES)], body, signature, **arrays).model
    copies, rest = after.graph
    found = [list(copies.attributes[name].as_ints()) for name in ("kernel_shape", "dilations", "pads")]
    found += [list(rest.attributes["kernel_shape"].as_ints()), query.ints(rest, "pads", default=(0, 0, 0, 0))]
    assert tuple(map(list, found)) == expected
    assert difference(before, after) < 1e-5


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (
            conv((7, 7), 16, strides=[2, 2]),
            "strides [2, 2] skip pixels, or its padding is not given in numbers",
        ),
        (conv((3, 3), 16, strides=[1, 1]), "6144 instead of 9216 multiplications for each result save too few"),
        (conv((3, 3), 16, channels=17, strides=[1, 1]), "17 channels of [3, 3] pixels leave no room among 32"),
        (conv((1, 1), 16, strides=[1, 1]), "3 channels of [1, 1] pixels leave no room among 32"),
        (conv((7, 7), 32, strides=[1, 1], dilations=[2, 2]), "it has groups or dilations"),
    ],
)
def test_neighbours_stay_where_they_are(case, reason):
    body, signature, arrays = case
    result = rewritten([TakeNeighboursIntoChannels(LANES)], body, signature, **arrays)
    assert ops(result.model) == ["Conv"]
    assert result.refusals[0].reason == reason
