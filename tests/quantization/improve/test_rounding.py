"""Weights rounded with feedback, and biases that make up for the rest, on one layer by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from intact.model import query
from intact.numbers import encoding as grid
from intact.quantization import quantizing
from intact.quantization.calibration.resolve import Resolved
from intact.quantization.improve.gptq import round_with_feedback
from intact.quantization.improve.rounding import correct_biases, round_weights
from intact.quantization.improve.study import best_candidates, studies
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model

F = np.float32
RNG = np.random.default_rng(11)
WEIGHT = RNG.standard_normal((6, 4)).astype(F)
COARSE, FINE = (grid.encode(-8.0, 8.0, "uint8", symmetric=False), grid.encode(-3.0, 5.0, "uint8", symmetric=False))
BIAS = np.arange(4, dtype=F)


def studied(body="m = MatMul(x, w)  y = Add(m, b)", **weights):
    """A layer, its plan, its grids and integers, and what was seen of its input on two grids that it may have."""
    float_model = model("float[8,6] x", "float[8,4] y", body, **{"w": WEIGHT, "b": BIAS, **weights})
    plan = quantizing.plan(float_model, load_target("cpu"), QuantConfig())
    (found,) = studies(float_model, plan, rows=3)
    x = RNG.standard_normal((3, 8, 6)).astype(F) + F(0.7)
    for row in x:
        found.add(row)
    found.expect((COARSE, FINE))
    ((weight, _),) = found.layers
    encoding = grid.encode(WEIGHT.min(axis=0), WEIGHT.max(axis=0), "int8", symmetric=True, axis=1)
    integers = grid.quantize(WEIGHT, encoding)
    resolved = Resolved(dict.fromkeys(plan.tensors, COARSE), {(weight.node, weight.index): (encoding, integers)})
    return float_model, plan, resolved, found, x.reshape(-1, 6).astype(np.float64)


@pytest.mark.parametrize("told", ["before", "after"])
def test_parts_of_the_rows_and_grids_told_late_make_no_difference(told):
    _, _, _, found, x = studied()
    whole = replace(found.fresh(), candidates=None if told == "after" else found.candidates)
    parts = whole.fresh(), whole.fresh()
    for number, row in enumerate(x.reshape(3, 8, 6).astype(F)):
        parts[number > 0].add(row)
    for part in parts:
        whole.join(part)
    if told == "after":
        assert sum(columns.shape[1] for columns in whole.kept) == len(x) and whole.tried == 0
        whole.expect((COARSE, FINE))
    assert whole.tried == len(x) and not whole.kept
    np.testing.assert_allclose(whole.disturbances, found.disturbances, rtol=1e-5)
    for index in (0, 1):
        np.testing.assert_allclose(whole.mean_on_grid(index), found.mean_on_grid(index), rtol=1e-5)


@pytest.mark.parametrize(
    ("gains", "taken"),
    [
        ([1.25] * 24, True),  # little, but on every row
        ([1.25] * 23 + [1.1], False),  # too little on one of few
        ([1.25] * 31 + [0.5], True),  # one row in 32 may lose
        ([2.0] * 23 + [1.05], True),  # much on all rows together, and no row loses
        ([4.0] * 23 + [0.9], False),  # much, but a row loses: there will be others
        ([1.0] * 24, False),
    ],
)
def test_a_grid_that_clips_has_to_be_better_on_nearly_every_row(gains, taken):
    _, plan, _, found, _ = studied()
    found.disturbances = [np.array([1.0, 1 / gain]) for gain in gains]
    assert best_candidates(plan, [found]) == {plan.tensors[found.entry]: int(taken)}


def test_where_the_best_grid_loses_on_a_row_the_next_that_does_not_is_taken():
    _, plan, _, found, _ = studied()
    found.disturbances = [np.array([1.0, 0.1, 0.7])] * 23 + [np.array([1.0, 1.5, 0.7])]
    assert best_candidates(plan, [found]) == {plan.tensors[found.entry]: 2}


def test_a_grid_that_lost_is_tried_no_more_by_the_study_that_decides():
    (one, plan, _, _, x), cut = studied(), grid.encode(-0.5, 0.5, "uint8", symmetric=False)
    studies_of_both = {}
    for decides in (True, False):
        (study,) = studies(one, plan, rows=3)
        study.expect((COARSE, cut, FINE), decides=decides)
        for row in x.reshape(3, 8, 6).astype(F):
            study.add(row)
        studies_of_both[decides] = study
    tried = {decides: np.array(study.disturbances) for decides, study in studies_of_both.items()}
    assert np.isinf(tried[True][1:, 1]).all() and np.isfinite(tried[True][0]).all() and np.isfinite(tried[False]).all()
    np.testing.assert_array_equal(tried[True][:, [0, 2]], tried[False][:, [0, 2]])
    chosen = [best_candidates(plan, [study]) for study in studies_of_both.values()]
    assert chosen[0] == chosen[1]


def test_the_noise_of_the_input_is_that_of_its_grid_in_every_row():
    _, _, resolved, found, x = studied()
    ((key, (encoding, _)),) = resolved.constants.items()
    coarse = Resolved(
        dict.fromkeys(resolved.tensors, grid.encode(-400.0, 400.0, "uint8", symmetric=False)), resolved.constants
    )
    for given in (resolved, coarse):
        step = float(given.tensors[found.entry].scale)
        scale, zero = encoding.scale[None, :], np.zeros((1, 4), np.int64)
        noise = step**2 / 12 * len(x)
        expected = round_with_feedback(WEIGHT.T[None].astype(np.float64), (x.T @ x)[None], scale, zero, "int8", noise)
        rounded = round_weights(given, [found], lambda: None).constants[key][1]
        np.testing.assert_array_equal(rounded, expected[0].T)


def test_a_bias_takes_the_mean_error_of_the_grid_that_was_chosen():
    float_model, plan, resolved, found, x = studied()
    (entry,) = {plan.tensors[found.entry]}
    ((encoding, integers),) = resolved.constants.values()
    rounded = integers.astype(np.float64) * encoding.scale
    for chosen, used in (({}, COARSE), ({entry: 0}, COARSE), ({entry: 1}, FINE)):
        on_grid = grid.dequantize(grid.quantize(x.astype(F), used), used)
        expected = BIAS + x.mean(axis=0) @ WEIGHT - on_grid.mean(axis=0) @ rounded
        result, changed = correct_biases(float_model, plan, resolved, [found], chosen)
        assert changed == ("b",)
        np.testing.assert_allclose(query.constant(result.graph.initializers["b"]), expected, atol=1e-4)
    np.testing.assert_array_equal(query.constant(float_model.graph.initializers["b"]), BIAS)


@pytest.mark.parametrize(
    ("body", "weights", "changed"),
    [
        ("m = MatMul(x, w)  y = Add(b, m)", {}, ("b",)),
        ("y = Gemm(x, w, b)", {}, ("b",)),
        ("m = MatMul(x, w)  y = Add(m, b)", {"b": BIAS[None]}, ("b",)),
        ("m = MatMul(x, w)  y = Add(m, b)", {"b": np.ones((8, 4), F)}, ()),
        ("m = MatMul(x, w)  y = Add(m, b)", {"b": np.ones((8, 1), F)}, ()),
        ("m = MatMul(x, w)  y = Mul(m, b)", {}, ()),
        ("m = MatMul(x, w)  n = Add(m, b)  y = Mul(n, b)", {}, ()),
        ("m = MatMul(x, w)  n = Add(m, b)  y = Mul(n, m)", {}, ()),
        ("y = MatMul(x, w)", {}, ()),
    ],
)
def test_only_a_constant_that_is_added_to_each_channel_and_to_nothing_else_is_a_bias(body, weights, changed):
    float_model, plan, resolved, found, _ = studied(body, **weights)
    before = ir.to_proto(float_model).SerializeToString()
    assert correct_biases(float_model, plan, resolved, [found], {})[1] == changed
    assert ir.to_proto(float_model).SerializeToString() == before
