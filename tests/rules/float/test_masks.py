"""How deep a mask has to be, from scores that were seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.rules.float import masks, settle
from intact.rules.float.masks import (
    FLOAT_DEPTH,
    Scores,
    choose_mask_depth,
    mask_depth,
    mask_sites,
    score_range,
    scores_of,
)
from intact.rules.float.optimization import optimize
from intact.runtime import ort_cpu
from tests.model.small import ops
from tests.rules.float.before_after import given

SIGNATURE = "(float[1,4,6] s, int64[1,1,6] mask) => (float[1,4,6] y)"
BODY = "b = Cast <to = 9> (mask)\n t = Where(b, s, low)\n y = Softmax(t)"
STEP = 1 / 256


def masked(depth: float = FLOAT_DEPTH) -> np.ndarray:
    """Two rows of scores, and a dead one; the last two keys are masked."""
    scores = np.array([[1, 5, -3, 9, 2], [4, 2, 0, -7, 11], [3, 3, 3, 3, 3]], np.float32)
    return scores - np.float32(depth) * np.array([[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]], np.float32)


def test_scores_tell_live_keys_from_masked_ones_and_count_dead_rows():
    assert scores_of(masked(), FLOAT_DEPTH) == Scores(high=11.0, lowest_peak=4.0, highest_peak=5.0, keys=5, dead_rows=1)


def test_scores_merge_in_any_order():
    array = masked()
    parts = [scores_of(array[index : index + 1], FLOAT_DEPTH) for index in range(3)]
    whole = scores_of(array, FLOAT_DEPTH)
    assert parts[0] | parts[1] | parts[2] == whole
    assert parts[2] | (parts[1] | parts[0]) == whole


@pytest.mark.parametrize("step", [1 / 256, 1 / 65536])
def test_at_the_chosen_depth_all_masked_keys_together_weigh_less_than_half_a_step(step):
    seen = Scores(high=20.0, lowest_peak=-3.0, highest_peak=8.0, keys=128)
    depth = mask_depth(seen, step)
    worst = (seen.keys - 1) * math.exp(seen.high - depth - seen.lowest_peak)
    assert worst < step / 2
    assert seen.keys * math.exp(seen.high - (depth - 1) - seen.lowest_peak) > step / 2


def test_what_lies_below_the_range_of_the_scores_weighs_less_than_half_a_step():
    seen = Scores(high=20.0, lowest_peak=-3.0, highest_peak=8.0, keys=16)
    found = score_range(seen, STEP)
    assert found.high == 8.0
    assert seen.keys * math.exp(found.low - seen.lowest_peak) == pytest.approx(STEP / 2)


def test_without_a_live_row_the_depth_stays():
    assert mask_depth(Scores(), STEP) == FLOAT_DEPTH


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        (BODY, {"low": np.float32(-np.inf)}),
        ("b = Cast <to = 9> (mask)\n n = Not(b)\n t = Where(n, low, s)\n y = Softmax(t)", {"low": np.float32(-1e9)}),
        ("t = Add(s, k)\n y = Softmax(t)", {"k": np.float32([[0, 1.5, 0, 0, -np.inf, -np.inf]])}),
    ],
    ids=["live", "dead", "constant"],
)
def test_a_chosen_depth_is_written_into_a_copy(body, arrays):
    signature = SIGNATURE if "mask" in body else "(float[1,4,6] s) => (float[1,4,6] y)"
    before = optimize(given(body, signature, **arrays)).model
    (site,) = mask_sites(before)
    seen = Scores(high=9.0, lowest_peak=1.0, highest_peak=7.0, keys=6)
    after = choose_mask_depth(before, {"t": seen}, STEP)
    assert mask_sites(after)[0].depth == mask_depth(seen, STEP) < site.depth
    assert mask_sites(before) == (site,)
    rng = np.random.default_rng(0)
    row = {"s": rng.uniform(1, 7, (1, 4, 6)).astype(np.float32), "mask": np.array([[[1, 1, 0, 1, 0, 0]]])}
    row = {value.name: row[value.name] for value in before.graph.inputs}
    found, expected = ort_cpu.run(after, row)["y"], ort_cpu.run(before, row)["y"]
    assert 0 < np.abs(found - expected).max() < STEP / 2


def test_a_depth_is_never_raised():
    before = optimize(given(BODY, SIGNATURE, low=np.float32(-2000))).model
    seen = Scores(high=9e3, lowest_peak=0.0, highest_peak=9e3, keys=6)
    assert mask_sites(choose_mask_depth(before, {"t": seen}, STEP))[0].depth == 2000


def test_layers_with_masks_of_their_own_get_depths_of_their_own():
    body = """
        b = Cast <to = 9> (mask)
        t = Where(b, s, low)
        p = Softmax(t)
        u = Where(b, p, low)
        y = Softmax(u)"""
    before = optimize(given(body, SIGNATURE, low=np.float32(-np.inf))).model
    assert ops(before).count("Cast") == 1
    seen = {"t": Scores(30.0, 0.0, 30.0, 6), "u": Scores(1.0, 0.2, 1.0, 6)}
    depths = [site.depth for site in mask_sites(choose_mask_depth(before, seen, STEP))]
    assert depths == [mask_depth(seen["t"], STEP), mask_depth(seen["u"], STEP)]


def test_a_long_way_to_the_softmax_is_not_followed_for_ever():
    body = "t0 = Add(s, k)\n" + "\n".join(f"t{i + 1} = Add(t{i}, k)" for i in range(20)) + "\n y = Softmax(t20)"
    model = given(body, "(float[1,4,6] s) => (float[1,4,6] y)", k=np.ones((1, 6), np.float32))
    assert masks.softmax_inputs(model.graph[0].outputs[0]) is None
    assert masks.softmax_inputs(model.graph[15].outputs[0]) is not None


def test_masked_tensors_are_those_from_a_mask_to_its_softmax_and_no_scores_before_it():
    body = BODY.replace("t = Where(b, s, low)", "r = Mul(s, s) t = Where(b, r, low)")
    model = optimize(given(body, SIGNATURE, low=np.float32(-np.inf))).model
    (node,) = [node for node in model.graph if node.op_type == "Add"]
    assert masks.masked(model) == {value.name for value in node.outputs} | {"t"} | _depths(model)
    assert masks.masked(given("y = Softmax(s)", "(float[1,4,6] s) => (float[1,4,6] y)")) == set()


def _depths(model):
    """The results of the nodes that multiply by depths."""
    return {node.outputs[0].name for node in model.graph if masks.MARK in node.metadata_props and node.op_type == "Mul"}


@pytest.mark.parametrize(("step", "below", "above"), [(STEP, 0.0, 1 / 16), (2.0**-16, 1 / 8, 1 / 8)])
def test_settled_scores_have_room_above_and_on_a_fine_grid_below(step, below, above):
    seen = Scores(high=9.0, lowest_peak=1.0, highest_peak=7.0, keys=6)
    plain, found = score_range(seen, step), settle._range(seen, step)
    width = plain.high - plain.low
    assert (plain.low - found.low, found.high - plain.high) == pytest.approx((below * width, above * width))
