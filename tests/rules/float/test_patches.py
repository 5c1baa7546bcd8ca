"""Convolutions over patches in two steps, for targets that take short strides only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import normalize, upgrade
from intact.rules.float import optimization
from intact.rules.float.patches import SplitLongStride
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
    after = optimization.optimize(before, ops=lambda *_: True, longest_stride=LONGEST).model
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
    split = optimization.optimize(model, ops=lambda *_: True, longest_stride=LONGEST).model
    assert [ops(found).count("Conv") for found in (whole, split)] == [1, 2]
    assert difference(model, split) < 1e-5
