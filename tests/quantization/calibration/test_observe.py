"""Observing: several rows at once, and the same sketches however many."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from intact.errors import ModelError
from intact.quantization import quantizing
from intact.quantization.calibration.observe import observe
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.quantization.models import model, rows

W = np.random.default_rng(4).standard_normal((4, 3, 1, 1)).astype(np.float32)
FEEDS = rows({"x": (1, 3, 6, 6)})


def observed(feeds, **more):
    net = model("float[1,3,6,6] x", "float[1,4,6,6] y", "c = Conv(x, w)  y = Relu(c)", w=W)
    plan = quantizing.plan(net, load_target("cpu"), QuantConfig(method="mse"))
    return observe(net, plan, feeds, **more)


def one_after_the_other(monkeypatch):
    monkeypatch.setattr(sys.modules[observe.__module__], "_AT_ONCE", 1)


def test_rows_that_run_at_once_leave_the_same_sketches(monkeypatch):
    together = observed(FEEDS)
    one_after_the_other(monkeypatch)
    assert together.keys() == observed(FEEDS).keys() == {"x", "y"}
    for name, alone in observed(FEEDS).items():
        assert (together[name].low, together[name].high, together[name].count) == (alone.low, alone.high, alone.count)
        assert all(np.array_equal(a, b) for a, b in zip(together[name].points(), alone.points(), strict=True))


def test_a_source_may_write_every_row_into_the_same_array(monkeypatch):
    array = np.empty_like(FEEDS[0]["x"])

    def reused():
        for feed in FEEDS:
            np.copyto(array, feed["x"])
            yield {"x": array}

    found = observed(reused())
    assert found["x"].low == min(feed["x"].min() for feed in FEEDS)
    assert found["x"].high == max(feed["x"].max() for feed in FEEDS)
    one_after_the_other(monkeypatch)
    assert all(np.array_equal(a, b) for a, b in zip(found["y"].points(), observed(FEEDS)["y"].points(), strict=True))


def test_progress_is_told_once_for_each_row():
    told = []
    observed(FEEDS, progress=lambda: told.append(1))
    assert len(told) == len(FEEDS)


def test_what_stops_one_row_stops_all_and_is_told():
    with pytest.raises(ModelError, match="ORT stopped while running the model"):
        observed([FEEDS[0], {"x": np.zeros((1, 2, 6, 6), np.float32)}, *FEEDS])
