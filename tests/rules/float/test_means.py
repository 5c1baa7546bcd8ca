"""Means over large images, patch by patch."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import query
from intact.rules.float import optimization
from intact.rules.float.means import MeanOfPatches
from intact.runtime import ort_cpu
from intact.targets.registry import load_target
from tests.rules.float.before_after import given, rewritten

MOST = 49


def mean(size, axes=(2, 3), keepdims=1):
    body = f"y = ReduceMean <keepdims = {keepdims}> (x, axes)"
    shape = ",".join(map(str, (2, 3, *size)))
    return body, f"(float[{shape}] x) => (float y)", {"axes": np.int64(axes)}


def steps(size, **options):
    body, signature, arrays = mean(size, **options)
    target = load_target("rknn")
    asked = optimization.rules_of(target, in_integers=True)
    assert target.most_in_mean == MOST and any(isinstance(rule, MeanOfPatches) for rule in asked)
    before = given(body, signature, **arrays)
    return before, optimization.optimize(before, ops=target.has, asked=asked).model


@pytest.mark.parametrize(
    ("size", "patches"),
    [
        ((8, 8), [(4, 4)]),
        ((14, 14), [(7, 7)]),
        ((56, 56), [(7, 7), (4, 4)]),
        ((112, 112), [(7, 7), (4, 4)]),
        ((12, 5), [(6, 5)]),
        ((3, 20), [(3, 5)]),
        # Sides that are prime are taken whole.
        ((13, 13), [(13, 13)]),
        ((11, 14), [(11, 7)]),
        ((1, 64), [(1, 4)]),
    ],
)
@pytest.mark.parametrize(("axes", "keepdims"), [((2, 3), 1), ((-1, -2), 0)])
def test_a_mean_of_many_numbers_is_one_of_patches_and_keeps_the_numbers(size, patches, axes, keepdims):
    before, after = steps(size, axes=axes, keepdims=keepdims)
    convolutions = [node for node in after.graph if node.op_type == "Conv"]
    assert [tuple(query.ints(node, "kernel_shape")) for node in convolutions][: len(patches)] == patches
    for node in after.graph:
        if node.op_type == "ReduceMean":
            assert np.prod(query.known_shape(node.inputs[0])[2:]) <= MOST
    x = np.random.default_rng(0).standard_normal((2, 3, *size)).astype(np.float32)
    exact = x.astype(np.float64).mean((2, 3), keepdims=bool(keepdims))
    for model in (before, after):
        found = ort_cpu.run(model, {"x": x})["y"]
        assert found.shape == exact.shape and np.abs(found - exact).max() < 1e-6


def test_a_mean_at_the_limit_stays_and_one_past_it_does_not():
    at, past = (rewritten([MeanOfPatches(MOST)], *mean(size)[:2], **mean(size)[2]) for size in ((7, 7), (2, 25)))
    assert at.applications == () and at.refusals[0].reason == "49 numbers are not more than 49"
    assert past.applications


@pytest.mark.parametrize(
    ("size", "axes", "reason"),
    [((8, 8), (3,), "rows and columns"), ((8, 8), (1, 2, 3), "rows and columns"), ((80,), (2,), "no image")],
)
def test_it_refuses_with_a_reason(size, axes, reason):
    body, signature, arrays = mean(size, axes)
    result = rewritten([MeanOfPatches(MOST)], body, signature, **arrays)
    assert reason in result.refusals[0].reason and result.applications == ()


def test_a_model_that_is_not_computed_in_integers_keeps_its_means():
    assert not any(isinstance(r, MeanOfPatches) for r in optimization.rules_of(load_target("rknn"), in_integers=False))
