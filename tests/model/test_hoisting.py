"""Values inside bodies come out of a session: every iteration, the branch that ran, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from intact.model import hoisting, normalize
from intact.runtime import ort_cpu
from tests.builder import from_text

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2

IF = """y = If (c) <then_branch = t () => (float[2,3] p) { a = Exp(x) p = Neg(a) },
                    else_branch = e () => (float[2,3] q) { b = Abs(x) q = Neg(b) }>"""
LOOP = """h = Identity(x)
  y, ys = Loop (n, , h) <body = l (int64 i, bool go, float[2,3] s) => (bool more, float[2,3] d, float[2,3] o)
            { more = Identity(go) d = Add(s, s) o = Neg(d) }>"""
GROWING = """y = Loop (n, , x) <body = l (int64 i, bool go, float[k,3] s) => (bool more, float[k2,3] d)
            { more = Identity(go) r = Exp(s) d = Concat <axis = 0> (s, x) }>"""
SCAN = """y, ys = Scan <num_scan_inputs = 1, scan_output_axes = [0], body = l (float[3] s, float[3] v)
            => (float[3] d, float[3] o) { d = Add(s, v) o = Mul(d, d) }> (z, x)"""
NESTED = """y = Loop (n, , x) <body = l (int64 i, bool go, float[2,3] s) => (bool more, float[2,3] d)
            { more = Identity(go)
              even = Equal(i, zero)
              d = If (even) <then_branch = t () => (float[2,3] p) { p = Add(s, x) },
                             else_branch = e () => (float[2,3] q) { w = Mul(s, x) q = Sub(w, x) }> }>"""


def inside(text: str, names: list[str], feeds: dict[str, np.ndarray], signature: str, **weights: np.ndarray):
    model = normalize.normalize(from_text(signature, text, weights=weights))
    return ort_cpu.run(model, feeds, outputs=[*names, *(value.name for value in model.graph.outputs)])


@pytest.mark.parametrize("taken", [True, False])
def test_of_a_branch_comes_what_it_computed_if_it_ran(taken):
    signature = "(float[2,3] x, bool c) => (float[2,3] y)"
    found = inside(IF, ["a", "b"], {"x": X, "c": np.array(taken)}, signature)
    assert np.allclose(found["a"], np.exp(X).reshape(-1) if taken else [])
    assert np.array_equal(found["b"], [] if taken else np.abs(X).reshape(-1))
    assert np.allclose(found["y"], -np.exp(X) if taken else -np.abs(X))


def test_of_a_loop_come_all_iterations_in_order():
    found = inside(LOOP, ["d", "s"], {"x": X}, "(float[2,3] x) => (float[2,3] y, float[t,2,3] ys)", n=np.array(3))
    assert np.array_equal(found["d"], np.concatenate([X.reshape(-1) * k for k in (2, 4, 8)]))
    assert np.array_equal(found["s"], np.concatenate([X.reshape(-1) * k for k in (1, 2, 4)]))
    assert np.array_equal(found["y"], 8 * X) and np.array_equal(found["ys"], np.stack([-2 * X, -4 * X, -8 * X]))


def test_a_loop_that_never_runs_gives_nothing():
    found = inside(LOOP, ["d"], {"x": X}, "(float[2,3] x) => (float[2,3] y, float[t,2,3] ys)", n=np.array(0))
    assert found["d"].shape == (0,) and np.array_equal(found["y"], X)


def test_what_grows_from_iteration_to_iteration_comes_whole():
    found = inside(GROWING, ["r"], {"x": X}, "(float[2,3] x) => (float[m,3] y)", n=np.array(3))
    assert np.allclose(found["r"], np.exp(np.tile(X.reshape(-1), 1 + 2 + 3)))
    assert np.array_equal(found["y"], np.tile(X, (4, 1)))


def test_of_a_scan_come_all_slices():
    signature = "(float[2,3] x, float[3] z) => (float[3] y, float[2,3] ys)"
    found = inside(SCAN, ["d", "v"], {"x": X, "z": np.ones(3, np.float32)}, signature)
    sums = 1 + np.cumsum(X, axis=0)
    assert np.array_equal(found["d"], sums.reshape(-1)) and np.array_equal(found["v"], X.reshape(-1))
    assert np.array_equal(found["ys"], sums**2)


def test_a_branch_within_a_loop_gives_the_iterations_that_took_it():
    weights = {"n": np.array(3), "zero": np.array(0)}
    found = inside(NESTED, ["p", "w"], {"x": X}, "(float[2,3] x) => (float[2,3] y)", **weights)
    first = X + X
    second = first * X
    third = (second - X) * X
    assert np.array_equal(found["p"], first.reshape(-1))
    assert np.allclose(found["w"], np.concatenate([second, third]).reshape(-1))
    assert np.allclose(found["y"], third - X)


def test_a_body_within_a_scan_cannot_be_seen():
    """A Scan stacks values of one size, and a branch may give nothing."""
    text = """y, ys = Scan <num_scan_inputs = 1, body = l (float[3] s, float[3] v) => (float[3] d, float[3] o)
        { d = If (c) <then_branch = t () => (float[3] p) { p = Add(s, v) },
                      else_branch = e () => (float[3] q) { q = Sub(s, v) }>
          o = Neg(d) }> (z, x)"""
    signature = "(float[2,3] x, float[3] z, bool c) => (float[3] y, float[2,3] ys)"
    model = normalize.normalize(from_text(signature, text))
    assert [graph.name for graph in hoisting.open_graphs(model)] == ["main", "l"]
