"""The models are what they claim: runnable, reproducible, and alive from input to output."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from tests.zoo import ZOO, bert, data, vit

EVERY_MODEL = pytest.mark.parametrize("name", ZOO)


def outputs(model, feeds):
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)


def row(arrays, index):
    return {name: array[index : index + 1] for name, array in arrays.items()}


@EVERY_MODEL
def test_a_builder_gives_the_same_bytes_twice(name):
    assert ZOO[name]().SerializeToString() == ZOO[name]().SerializeToString()


@EVERY_MODEL
def test_every_output_depends_on_the_input_and_is_finite(name):
    model = ZOO[name]()
    arrays = data(model, rows=2)
    for first, second in zip(outputs(model, row(arrays, 0)), outputs(model, row(arrays, 1)), strict=True):
        assert np.isfinite(first).all()
        assert np.abs(first - second).max() > 0.01


@EVERY_MODEL
def test_data_is_the_same_for_the_same_seed_only(name):
    model = ZOO[name]()
    first, again, other = data(model, 3, seed=1), data(model, 3, seed=1), data(model, 3, seed=2)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert any(not np.array_equal(first[key], other[key]) for key in first)


def test_a_masked_token_does_not_reach_the_live_ones():
    model = bert()
    feeds = row(data(model, rows=1), 0)
    feeds["attention_mask"][:] = [[1] * 8 + [0] * 8]
    changed = feeds | {"input_ids": feeds["input_ids"].copy()}
    changed["input_ids"][0, 8:] = (changed["input_ids"][0, 8:] + 1) % 96
    live, live_after = (outputs(model, given)[0][:, :8] for given in (feeds, changed))
    np.testing.assert_allclose(live, live_after, rtol=0, atol=1e-5)


@pytest.mark.parametrize("build", [bert, vit])
def test_both_forms_of_gelu_agree_on_the_same_weights(build):
    feeds = row(data(build(), rows=1), 0)
    for erf, tanh in zip(outputs(build(gelu="erf"), feeds), outputs(build(gelu="tanh"), feeds), strict=True):
        np.testing.assert_allclose(erf, tanh, rtol=0, atol=0.02)
