"""Ranges that follow from operators alone, for data that nobody has seen."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import normalize
from intact.quantization.planning.planner import plan
from intact.quantization.planning.value_bounds import hull, value_bounds
from intact.results import Range
from intact.settings.config import QuantConfig
from intact.targets.registry import load_target
from tests.builder import from_text

ONE, BOTH = Range(0.0, 1.0), Range(-1.0, 1.0)
WEIGHT = {"w": np.ones((4, 4), np.float32), "axes": np.array([1], np.int64)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = Sigmoid(x)", ONE),
        ("y = Tanh(x)", BOTH),
        ("s = Sigmoid(x) y = ReduceMean(s, axes)", ONE),
        ("s = Sigmoid(x) t = Tanh(x) y = Mul(s, t)", BOTH),
        ("s = Sigmoid(x) t = Tanh(x) y = Concat<axis = 0>(s, t)", BOTH),
        ("t = Tanh(x) u = Transpose(t) y = Softmax(u)", ONE),
        ("s = Sigmoid(x) y = Mul(s, x)", None),
        ("s = Sigmoid(x) y = Concat<axis = 0>(s, x)", None),
        ("s = Sigmoid(x) y = Add(s, s)", None),
        ("y = Relu(x)", None),
    ],
)
def test_bounds_follow_from_operators(text, expected):
    model = from_text("(float[4,4] x) => (float[N,M] y)", text, weights=WEIGHT if "axes" in text else {})
    assert value_bounds(model.graph).get(model.graph.outputs[0]) == expected


def test_a_hull_holds_all_or_is_not_known():
    assert hull([ONE, Range(-0.5, 0.25)]) == Range(-0.5, 1.0)
    assert hull([ONE, None]) is None and hull([]) is None


@pytest.mark.parametrize("headroom", [0.25, 4.0])
def test_a_plan_asks_for_them_where_room_is_asked_for(headroom):
    text = "a = MatMul(x, w) t = Tanh(a) s = Sigmoid(t) m = Mul(s, t) y = MatMul(m, w)"
    model = normalize.normalize(from_text("(float[4,4] x) => (float[4,4] y)", text, weights={"w": WEIGHT["w"]}))
    found = plan(model, load_target("qnn"), QuantConfig(activation_type="uint16", headroom=headroom))
    grids = {name: found.grids[found.tensors[name]] for name in ("x", "a", "m", "y")}
    roomy = headroom > 1
    assert {name: grid.bounds for name, grid in grids.items()} == dict.fromkeys("xay") | {"m": BOTH if roomy else None}
    assert {name: grid.reach for name, grid in grids.items()} == {"x": 0, "a": 8 if roomy else 0, "m": 0, "y": 0}
